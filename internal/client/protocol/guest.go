package protocol

import (
	"errors"
	"os"
	"path/filepath"
)

// A GuestCard is the configuration of a virtual machine that gets a NIC.
type GuestCard struct {
	NIC       string   `json:"nic"`
	Network   string   `json:"network"`
	Addresses []string `json:"addresses"`
	MAC       string   `json:"mac"`
	MTU       int      `json:"mtu"`
	Socket    string   `json:"socket"` // of vhost-user
	Error     string   `json:"error,omitempty"`
}

// QueryGuest asks at the socket of a NIC for its virtual machine sockets. They stay open from then on, also after a restart of the daemon.
func QueryGuest(socket string) (*GuestCard, error) {
	s, err := Dial(socket, Hello{Kind: KindGuest, Program: filepath.Base(os.Args[0])})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	card := new(GuestCard)
	if err := s.ReceiveJSON(card); err != nil {
		return nil, err
	}
	if card.Error != "" {
		return nil, errors.New(card.Error)
	}
	return card, nil
}
