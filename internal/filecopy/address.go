package filecopy

import (
	"fmt"
	"net"
	"strings"
)

// DefaultPort is the port of a standing server.
const DefaultPort = "7473"

// An Address is the location of files, as a user writes it.
type Address struct {
	Path string
	Host string // empty: this host
	Port string // of a standing server; empty: the server is started through ssh
}

const scheme = "rdma://"

// ParseAddress reads PATH, HOST:PATH or rdma://HOST[:PORT]/PATH. As with scp, a colon before the first slash means another host: ./a:b
// is a local file.
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

// Local reports whether it is a local path.
func (a Address) Local() bool { return a.Host == "" }

// Direct reports whether it names a standing server.
func (a Address) Direct() bool { return a.Port != "" }

// Same reports whether two addresses have the same server.
func (a Address) Same(b Address) bool { return a.Host == b.Host && a.Port == b.Port }
