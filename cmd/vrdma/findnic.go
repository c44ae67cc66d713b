package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// findNIC returns the place of a declared NIC of the daemon at place, and checks that this process
// may open it and that no other host has it.
func findNIC(place launch.Place, name string) (launch.Place, error) {
	at, err := locateNIC(place, name)
	if err != nil {
		return place, err
	}
	of, nic, _ := strings.Cut(name, "/")
	return at, elsewhere(at, of, nic)
}

// locateNIC is findNIC for a NIC that another host may have now.
func locateNIC(place launch.Place, name string) (launch.Place, error) {
	of, nic, ok := strings.Cut(name, "/")
	if !ok || !label(of) || !label(nic) {
		return place, usage("there is no NIC %q: want TENANT/NAME", name)
	}
	at, err := place.NIC(of, nic)
	if err != nil {
		return place, usage("%w", err)
	}
	// The NIC's socket checks access, and the connection makes the daemon write the device tree.
	_, err = protocol.QueryStatus(at.Socket)
	var refusal *protocol.Refusal
	switch {
	case err == nil:
		return at, nil
	case errors.As(err, &refusal) && refusal.Text != "":
		return place, lacks("%w", err)
	case absent(err):
		if err := elsewhere(place, of, nic); err != nil {
			return place, err // it is on another host
		}
		return place, absentNIC(place, name)
	case errors.Is(err, fs.ErrPermission):
		return place, lacks("permission denied for NIC %s (%w at %s): spec.open of the NIC must name user %d or one of its groups; ask the operator of the daemon", name, syscall.EACCES, closed(at.Socket), os.Getuid())
	}
	return place, lacks("NIC %s at %s does not answer properly: %w", name, at.Socket, err)
}

// closed returns the first directory on the way to a path that this process cannot search, else the path.
func closed(path string) string {
	for i, c := range path {
		if dir := path[:i]; c == '/' && i > 0 && unix.Access(dir, unix.X_OK) != nil {
			return dir
		}
	}
	return path
}

// elsewhere returns an error if the NIC is on another host.
func elsewhere(at launch.Place, of, name string) error {
	r, err := control.Describe(at.Socket, tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name})
	if err != nil || len(r.Items) == 0 || r.Items[0].Status == nil || r.Items[0].Status.State != control.Elsewhere {
		return nil // the NIC's socket reports other problems
	}
	return lacks("NIC %s/%s cannot be used here: %s", of, name, show.Plain(r.Items[0].Status.Reason))
}

// absentNIC returns an error for a missing NIC that lists the existing ones.
func absentNIC(place launch.Place, name string) error {
	there, err := protocol.QueryNICs(place.Socket)
	switch {
	case absent(err):
		return lacks("no daemon serves %s: start one with vrdma daemon and declare NIC %s there, or choose another with --socket", place.Socket, name)
	case errors.Is(err, fs.ErrPermission):
		return lacks("there is no NIC %s, or it is not for us", name)
	case err != nil:
		return lacks("there is no NIC %s, and the daemon does not say which there are: %w", name, err)
	}
	var names []string
	for _, n := range there {
		if n.Name != "default" {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return lacks("there is no NIC %s, nor any other for us: declare it with vrdma apply", name)
	}
	slices.Sort(names)
	const most = 20
	list := strings.Join(names[:min(most, len(names))], ", ")
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return lacks("there is no NIC %s: for us there are %s", name, list)
}

// label reports whether s is a valid object name: it becomes a part of a path.
func label(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
