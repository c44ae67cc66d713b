package filecopy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// An Announcement is what a server prints when it starts.
type Announcement struct {
	Directory, Transport string
	KeyFile              string // empty: every client may connect
	Write, Overwrite     bool
	OneChunk             bool // it speaks the published protocol
}

// Lines says where the server is, who may connect, and what clients may do. addr is the listen address; own are this host's addresses,
// which replace an unspecified one.
func (a *Announcement) Lines(addr string, own []netip.Addr) []string {
	host, port, _ := net.SplitHostPort(addr)
	list := []string{host}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		list = nil
		for _, ip := range own {
			list = append(list, ip.String())
		}
	}
	where := "on this host"
	for i, h := range list {
		if ip, err := netip.ParseAddr(h); err != nil || !ip.IsLoopback() {
			where = "on the hosts that reach these addresses"
		}
		list[i] = scheme + net.JoinHostPort(h, port) + "/"
	}
	who := "everybody"
	if a.KeyFile != "" {
		who = "clients with the key of " + a.KeyFile
	}
	return []string{
		fmt.Sprintf("serving %s over %s at %s", a.Directory, a.Transport, strings.Join(list, " ")),
		fmt.Sprintf("%s %s may %s below it", who, where, a.allowed()),
		"the data is not encrypted on its way: an eavesdropper can read the files",
	}
}

// allowed is what clients may do.
func (a *Announcement) allowed() string {
	switch {
	case a.OneChunk:
		return "send files"
	case a.Write && a.Overwrite:
		return "fetch, send and overwrite files"
	case a.Write:
		return "fetch and send files"
	default:
		return "fetch files"
	}
}
