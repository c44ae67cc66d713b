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

// The sysfs tree names the network interface of each GID, and libibverbs rejects a GID table with an interface that does not
// exist. The daemon's interface names do not exist in this machine. So the agent names the interface that has the GID's address
// here, mostly the NIC's own card. Without one it writes no file, which libibverbs treats as "no interface".

// gidFile reports whether a file of the tree is a GID, and returns the file for the name of its interface.
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

// learn records a GID. A row that has become empty is kept, so that its file is removed.
func (a *Agent) learn(netdev, content string) {
	ip, err := netip.ParseAddr(strings.TrimSpace(content))
	if err != nil || ip.IsUnspecified() {
		ip = netip.Addr{} // an empty row
	}
	if a.gids == nil {
		a.gids, a.named = make(map[string]netip.Addr), make(map[string]string)
	}
	a.gids[netdev] = ip.Unmap()
}

// nameInterfaces writes the interface name of each GID. It runs for every program, because addresses change.
func (a *Agent) nameInterfaces() error {
	has := make(map[netip.Addr]string)
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		list, _ := i.Addrs() // the interface may be gone
		for _, p := range list {
			if p, err := netip.ParsePrefix(p.String()); err == nil {
				has[p.Addr().Unmap().WithZone("")] = i.Name
			}
		}
	}
	devices := make(map[string]map[string]bool) // interfaces by device
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

// nameInterface writes the interface name of a GID; an empty name removes the file.
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

// list creates a directory for each interface of a device, as the kernel does, and removes others.
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
