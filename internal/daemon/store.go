package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/store/etcd"
)

// storePath is the file of declared objects: the one of --store, else a file of this daemon's own in $XDG_STATE_HOME/vrdma,
// /var/lib/vrdma for root, ~/.local/state/vrdma, or beside the socket. Its name is a hash of the socket's path, like that of the
// control socket.
func storePath(flag string, place launch.Place) string {
	if flag != "" && !strings.HasPrefix(flag, etcd.Scheme) {
		return flag
	}
	socket := place.Socket
	if dir, err := filepath.EvalSymlinks(filepath.Dir(socket)); err == nil {
		socket = filepath.Join(dir, filepath.Base(socket))
	}
	sum := sha256.Sum256([]byte(socket))
	name := hex.EncodeToString(sum[:8]) + ".db"
	var paths []string
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		paths = append(paths, filepath.Join(dir, "vrdma", name))
	}
	if os.Geteuid() == 0 {
		paths = append(paths, filepath.Join("/var/lib/vrdma", name))
	} else if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		paths = append(paths, filepath.Join(home, ".local/state/vrdma", name))
	}
	return firstReachable(append(paths, place.Socket+".db"))
}

// firstReachable is the first path that exists or could be made, else the last one. HOME may be another user's after su or setpriv.
func firstReachable(paths []string) string {
	for _, p := range paths[:len(paths)-1] {
		if _, err := os.Lstat(p); err == nil || errors.Is(err, fs.ErrNotExist) {
			return p
		}
	}
	return paths[len(paths)-1]
}

// storage is the store of declared objects. It implements diag.Store.
type storage struct {
	store.Store
	name  string // of a store that several hosts share, or the file
	plane *plane // for the generation
}

// openStore opens etcd, or a file that is made when something is declared.
func (s *settings) openStore(p *plane) (*storage, error) {
	if strings.HasPrefix(s.Store, "etcd:") && !strings.HasPrefix(s.Store, etcd.Scheme) {
		return nil, exit.Usage("--store %s: a store in etcd is named %sHOST:PORT[,HOST:PORT…]; a file of that name is ./%[1]s", s.Store, etcd.Scheme)
	}
	path := storePath(s.Store, s.place)
	if strings.HasPrefix(s.Store, etcd.Scheme) {
		return s.openEtcd(strings.TrimSuffix(path, ".db")+".copy", p)
	}
	if s.StoreConfig != "" {
		return nil, exit.Usage("--store-config is for a store in etcd: --store %sHOST:PORT", etcd.Scheme)
	}
	opened, problems, err := store.Open(path)
	if err != nil {
		return nil, exit.Lacks("%w", err)
	}
	for _, p := range problems {
		s.log.Warn("an entry of the store is left out", "store", path, "why", p)
	}
	if opened.ReadOnly() {
		s.log.Warn("the store is on a read-only file system: nothing can be declared or changed until it is writable", "store", path)
	}
	return &storage{Store: opened, name: path, plane: p}, nil
}

// openEtcd opens a store that other hosts use too. path is for a copy of its last contents.
func (s *settings) openEtcd(path string, p *plane) (*storage, error) {
	endpoints, err := etcd.Endpoints(s.Store)
	if err != nil {
		return nil, exit.Usage("--store: %w", err)
	}
	cfg, err := readStoreConfig(s.StoreConfig)
	if err != nil {
		return nil, err
	}
	if cfg.Copy == "" {
		cfg.Copy = path
	}
	cfg.Endpoints, cfg.Log, cfg.Leases = endpoints, s.log, s.from.leases()
	if s.Ephemeral {
		return nil, exit.Usage("--ephemeral: a daemon that ends with its programs has no store in etcd")
	}
	if !cfg.Secure() && slices.ContainsFunc(endpoints, elsewhere) {
		s.log.Warn("the store is reached over a network without TLS: others can read and change what is declared", "store", s.Store, "do", "give etcd certificates, and name ca, certificate and key in --store-config")
	}
	opened, err := etcd.Open(cfg)
	if err != nil {
		return nil, exit.Lacks("%w", err)
	}
	return &storage{Store: opened, name: s.Store, plane: p}, nil
}

// elsewhere reports whether an endpoint may be on another machine.
func elsewhere(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = endpoint
	}
	ip, err := netip.ParseAddr(host)
	return err != nil && host != "localhost" || err == nil && !ip.IsLoopback()
}

// readStoreConfig reads the file of --store-config. The error has one line for each mistake, with file and line.
func readStoreConfig(path string) (cfg etcd.Config, err error) {
	if path == "" {
		return cfg, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return cfg, exit.Lacks("--store-config: %w", err)
	}
	p := parser{path: path, settings: storeSettings(&cfg), seen: make(map[string]int)}
	p.parse(text)
	if len(p.mistakes) == 0 {
		p.set(nil)
	}
	if len(p.mistakes) > 0 {
		return cfg, exit.Usage("%w", errors.Join(p.mistakes...))
	}
	return cfg, nil
}

// storeSettings are the fields of the file of --store-config.
func storeSettings(c *etcd.Config) []Setting {
	return []Setting{
		{Key: "ca", Into: &c.CA, check: checkFile},
		{Key: "certificate", Into: &c.Certificate, check: checkFile},
		{Key: "key", Into: &c.Key, check: checkFile},
		{Key: "serverName", Into: &c.ServerName},
		{Key: "user", Into: &c.User},
		{Key: "passwordFile", Into: &c.PasswordFile, check: checkFile},
		{Key: "prefix", Into: &c.Prefix},
		{Key: "copy", Into: &c.Copy},
	}
}

// checkFile is for values that are files which the daemon reads.
func checkFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err) // the value has the path
	}
	return f.Close()
}

// ownStore is the state of a store in a file: no other host has it.
const ownStore = "own"

// StoreStatus implements diag.Store.
func (s *storage) StoreStatus() *protocol.StoreStatus {
	remote, shared := s.Store.(store.Remote)
	if !shared {
		return &protocol.StoreStatus{Name: s.name, State: ownStore, Generation: s.plane.Generation()}
	}
	h := remote.Health()
	st := &protocol.StoreStatus{Name: s.name, State: string(h.State), Heard: h.Heard, Problems: h.Problems, Generation: s.plane.Generation()}
	if h.Why != nil {
		st.Why = h.Why.Error()
	}
	return st
}

// age is the time since the last answer of a shared store; 0 for a store of this host's own.
func (s *storage) age() time.Duration {
	if remote, shared := s.Store.(store.Remote); shared {
		if heard := remote.Health().Heard; !heard.IsZero() {
			return max(time.Since(heard), 0)
		}
	}
	return 0
}
