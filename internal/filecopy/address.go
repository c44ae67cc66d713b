package filecopy

import (
	"fmt"
	"net"
	"strings"
)

// DefaultPort is where a standing server is found.
const DefaultPort = "7473"

// An Address is what a user calls a place of files.
type Address struct {
	Path string
	Host string // empty: here
	Port string // of a standing server; empty: it is started through ssh
}

const scheme = "rdma://"

// ParseAddress reads PATH, HOST:PATH or rdma://HOST[:PORT]/PATH. As with scp, a colon before the first
// slash makes it another host's: ./a:b is a file here.
func ParseAddress(s string) (Address, error) {
	if rest, found := strings.CutPrefix(s, scheme); found {
		host, path, _ := strings.Cut(rest, "/")
		a := Address{Host: host, Port: DefaultPort, Path: path}
		if h, p, err := net.SplitHostPort(host); err == nil {
			a.Host, a.Port = h, p
		} else {
			a.Host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		}
		if a.Host == "" || a.Port == "" || strings.ContainsAny(a.Host, "@ ") {
			return Address{}, fmt.Errorf("%s: want rdma://HOST[:PORT]/PATH", s)
		}
		return a, nil
	}
	colon := strings.Index(s, ":")
	if close := strings.Index(s, "]:"); close > 0 && strings.Contains(s[:close], "[") { // an IPv6 address
		colon = close + 1
	}
	if slash := strings.Index(s, "/"); colon <= 0 || slash >= 0 && slash < colon {
		if s == "" {
			return Address{}, fmt.Errorf("an empty path")
		}
		return Address{Path: s}, nil
	}
	a := Address{Host: s[:colon], Path: s[colon+1:]}
	if a.Path == "" {
		a.Path = "."
	}
	if strings.HasPrefix(a.Host, "-") {
		return Address{}, fmt.Errorf("%s: a host's name does not begin with -", s)
	}
	return a, nil
}

// Local reports whether it is a path here.
func (a Address) Local() bool { return a.Host == "" }

// Direct reports whether a standing server is meant.
func (a Address) Direct() bool { return a.Port != "" }

// Same reports whether two addresses are at one server.
func (a Address) Same(b Address) bool { return a.Host == b.Host && a.Port == b.Port }
