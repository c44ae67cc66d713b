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

// parentFile reports whether a file of the tree is the name of the daemon's interface.
func parentFile(name string) bool {
	return strings.HasPrefix(name, "class/infiniband/") && filepath.Base(name) == "parent"
}

// learn takes note of a GID. A row without one is kept: it may have had one.
func (a *Agent) learn(netdev, content string) {
	ip, err := netip.ParseAddr(strings.TrimSpace(content))
	if err != nil || ip.IsUnspecified() {
		ip = netip.Addr{} // nobody's
	}
	if a.gids == nil {
		a.gids, a.named = make(map[string]netip.Addr), make(map[string]string)
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
	devices := make(map[string]map[string]bool) // the interfaces of each
	for file, ip := range a.gids {
		name := has[ip]
		if old, ok := a.named[file]; !ok || old != name { // most rows are empty, and stay so
			if err := nameInterface(filepath.Join(a.cfg.Tree, file), name); err != nil {
				return err
			}
			a.named[file] = name
		}
		device, _, _ := strings.Cut(file, "/ports/")
		if devices[device] == nil {
			devices[device] = make(map[string]bool)
		}
		if name != "" {
			devices[device][name] = true
		}
	}
	for device, names := range devices {
		if err := list(filepath.Join(a.cfg.Tree, device, "device/net"), names); err != nil {
			return err
		}
	}
	return nil
}

// nameInterface says in a file that a GID is of an interface; empty: of none, and there is no file.
func nameInterface(file, name string) error {
	if name == "" {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(name+"\n"), 0o644)
}

// list has a directory for each interface of a device, as the kernel has, and no others.
func list(dir string, names map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !names[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for name := range names {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}
