package vmagent

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// The device tree says of each GID which network interface it is of, and libibverbs refuses a table of GIDs with
// an interface that is not there. The daemon's name for it is none of this machine's. So a GID is said to be of
// the interface that has its address here: the NIC's own card, mostly. Without one there is no file, which
// libibverbs takes for "no interface".

// gidFile reports whether a file of the tree is a GID, and where the name of its interface belongs.
func gidFile(name string) (netdev string, ok bool) {
	dir, index := filepath.Split(name)
	port, ok := strings.CutSuffix(dir, "/gids/")
	return port + "/gid_attrs/ndevs/" + index, ok
}

// netdevFile reports whether a file of the tree is the name of a GID's interface.
func netdevFile(name string) bool {
	return strings.HasSuffix(filepath.Dir(name), "/gid_attrs/ndevs")
}

// learn takes note of a GID. mu is held.
func (a *Agent) learn(netdev, content string) {
	ip, err := netip.ParseAddr(strings.TrimSpace(content))
	if err != nil || ip.IsUnspecified() {
		delete(a.gids, netdev)
		return
	}
	if a.gids == nil {
		a.gids = make(map[string]netip.Addr)
	}
	a.gids[netdev] = ip.Unmap()
}

// nameInterfaces says of each GID which interface it is of. Addresses come and go, so it is done for
// every program.
func (a *Agent) nameInterfaces() error {
	has := make(map[netip.Addr]string)
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		list, _ := i.Addrs() // it may be gone
		for _, p := range list {
			if p, err := netip.ParsePrefix(p.String()); err == nil {
				has[p.Addr().Unmap().WithZone("")] = i.Name
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for file, ip := range a.gids {
		path := filepath.Join(a.cfg.Tree, file)
		old, _ := os.ReadFile(path)
		name := has[ip]
		switch {
		case strings.TrimSpace(string(old)) == name:
		case name == "":
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		default:
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name+"\n"), 0o644)); err != nil {
				return err
			}
		}
	}
	return nil
}
