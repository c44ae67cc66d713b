package doctor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// rocePort is the UDP port of RoCEv2.
const rocePort = 4791

// The TCP ports that experiments give to tools.
const (
	firstToolPort = 12000
	toolPorts     = 18000
)

// A greeting is the first line of an Answerer: what its machine has, and where it answers.
type greeting struct {
	Findings []Finding `json:"findings"`
	Machine  string    `json:"machine"` // operating system and architecture
	Token    string    `json:"token"`   // each datagram begins with it: strangers get no answer
	UDP      int       `json:"udp"`
	Busy     string    `json:"busy,omitempty"` // why UDP is not rocePort
	TCP      int       `json:"tcp"`
}

// Answer is the far side of ExaminePeer: it prints what this machine has, and then returns each datagram and connection of the peer until
// in ends.
func Answer(m *Machine, in io.Reader, out io.Writer) error { return answer(m, in, out, rocePort) }

func answer(m *Machine, in io.Reader, out io.Writer, port int) error {
	g := greeting{Machine: runtime.GOOS + "/" + runtime.GOARCH, Token: rand.Text()}
	u, err := listenUDP(port)
	if err != nil {
		g.Busy = err.Error()
		if u, err = listenUDP(0); err != nil {
			return err
		}
	}
	defer u.Close()
	l, err := listenTCP()
	if err != nil {
		return err
	}
	defer l.Close()
	g.UDP, g.TCP = u.LocalAddr().(*net.UDPAddr).Port, l.Addr().(*net.TCPAddr).Port
	// The check of the port would find it in use: by this program.
	g.Findings = Examine(m, All(), "")
	for i := range g.Findings {
		if f := &g.Findings[i]; f.Name == portCheck && g.Busy == "" {
			f.Outcome, f.Found, f.Do = Yes, "free", ""
		}
	}
	if err := json.NewEncoder(out).Encode(g); err != nil {
		return err
	}
	go echo(u, g.Token)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			c.Close()
		}
	}()
	_, err = io.Copy(io.Discard, in)
	return err
}

// echo returns datagrams that begin with the token, until the socket is closed.
func echo(u *net.UDPConn, token string) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := u.ReadFromUDP(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && strings.HasPrefix(string(b[:n]), token) {
			u.WriteToUDP(b[:n], from) // the peer notices a loss
		}
	}
}

// listenUDP opens a socket whose datagrams are not fragmented.
func listenUDP(port int) (*net.UDPConn, error) {
	c := net.ListenConfig{Control: unfragmented}
	p, err := c.ListenPacket(context.Background(), "udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	return p.(*net.UDPConn), nil
}

// unfragmented sets "don't fragment" and ignores the path MTU that the kernel knows.
func unfragmented(_, _ string, c syscall.RawConn) (err error) {
	err2 := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	})
	return errors.Join(err, err2)
}

// listenTCP listens on one of the ports that experiments use.
func listenTCP() (net.Listener, error) {
	var last error
	for i := range 100 {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", firstToolPort+(int(rocePort)*(i+1))%toolPorts))
		if err == nil {
			return l, nil
		}
		last = err
	}
	return nil, last
}
