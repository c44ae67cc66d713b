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
		if err := a.nameInterface(file, has[ip]); err != nil {
			return err
		}
	}
	return nil
}

// nameInterface says of one GID that it is of an interface; empty: of none.
func (a *Agent) nameInterface(file, name string) error {
	path := filepath.Join(a.cfg.Tree, file)
	text, _ := os.ReadFile(path)
	old := strings.TrimSpace(string(text))
	if old == name {
		return nil
	}
	// The device has the interface as a directory, too.
	device, _, _ := strings.Cut(path, "/ports/")
	list := filepath.Join(device, "device/net")
	if old != "" {
		if err := errors.Join(os.Remove(filepath.Join(list, old)), os.Remove(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if name == "" {
		return nil
	}
	return errors.Join(os.MkdirAll(filepath.Join(list, name), 0o755), os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name+"\n"), 0o644))
}
