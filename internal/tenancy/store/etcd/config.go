package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"
)

// Scheme is the prefix of the name of a store in etcd.
const Scheme = "etcd://"

// DefaultPrefix is the default prefix of all keys.
const DefaultPrefix = "/vrdma/v1/"

// Config has the addresses of etcd and the credentials. Secrets are in files, because other users can see arguments and
// environment.
type Config struct {
	// Endpoints are HOST:PORT each, of the members.
	Endpoints []string     `json:"-"`
	Log       *slog.Logger `json:"-"`
	// Leases are those of the daemon that this one takes over from, by the keys of Alive. Alive continues them.
	Leases map[string]int64 `json:"-"`

	// Copy is the file for the last state; "": there is none.
	Copy string `json:"copy,omitempty"`

	// CA is a file with the certificates that sign etcd's; empty: the system's. Certificate and Key are files with our
	// own. TLS is used if one of the three, or ServerName, is set.
	CA          string `json:"ca,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	// ServerName is the name in etcd's certificate, if that is not the endpoint.
	ServerName string `json:"serverName,omitempty"`
	// User, and a file with the password, for etcd's authentication. With a certificate alone, its common name is the
	// user.
	User         string `json:"user,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
	// Prefix separates several stores in one etcd; empty: DefaultPrefix.
	Prefix string `json:"prefix,omitempty"`

	fresh time.Duration // replaces freshTime if it is not 0
	most  int           // replaces mostHeld if it is not 0
	part  int           // replaces mostAnswer if it is not 0
	again time.Duration // replaces largeTime if it is not 0
}

// Endpoints reads etcd://a:2379,b:2379.
func Endpoints(name string) ([]string, error) {
	list, found := strings.CutPrefix(name, Scheme)
	if !found {
		return nil, fmt.Errorf("the store %q does not begin with %s", name, Scheme)
	}
	var out []string
	for one := range strings.SplitSeq(strings.TrimSuffix(list, "/"), ",") {
		host, port, err := net.SplitHostPort(one)
		if err != nil || host == "" || port == "" || strings.ContainsAny(one, "/@?#") {
			return nil, fmt.Errorf("the store %q: %q is not HOST:PORT: write %sa:2379,b:2379,c:2379; credentials are in the file of --store-config", name, one, Scheme)
		}
		out = append(out, one)
	}
	return out, nil
}

// Secure reports whether the connection is encrypted.
func (c *Config) Secure() bool {
	return c.CA != "" || c.Certificate != "" || c.Key != "" || c.ServerName != ""
}

// tls is the TLS configuration; nil: the connection is not encrypted.
func (c *Config) tls() (*tls.Config, error) {
	if !c.Secure() {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("the store's ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("the store's ca %s has no certificate in PEM", c.CA)
		}
	}
	if (c.Certificate == "") != (c.Key == "") {
		return nil, errors.New("the store's certificate and key belong together: give both, or none")
	}
	if c.Certificate == "" {
		return out, nil
	}
	if err := private(c.Key); err != nil {
		return nil, err
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
		if err != nil {
			return nil, fmt.Errorf("the store's certificate: %w", err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	// Certificates are renewed while daemons run.
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return out, nil
}

// password reads the password's file: its first line.
func (c *Config) password() (string, error) {
	if (c.User == "") != (c.PasswordFile == "") {
		return "", errors.New("the store's user and passwordFile belong together: give both, or none")
	}
	if c.User == "" {
		return "", nil
	}
	if err := private(c.PasswordFile); err != nil {
		return "", err
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("the store's password: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fmt.Errorf("the store's password: %s is empty", c.PasswordFile)
	}
	return line, nil
}

// private refuses a secret that other users can read.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("a secret of the store: %w", err)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o: others can read this secret; chmod 0600 it", path, info.Mode().Perm())
	}
	return nil
}
