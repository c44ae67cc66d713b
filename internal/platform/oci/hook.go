package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/platform/preflight"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Hook is a hook of an OCI runtime, called for one container.
type Hook struct {
	Place launch.Place // the daemon's
	State io.Reader    // the state of the container, as the runtime writes it to the hook's stdin
	Log   io.Writer    // some engines show it
}

// bundle reads the state and opens the container's bundle.
func (h *Hook) bundle() (*container.State, *container.Bundle, error) {
	state, err := container.ReadState(h.State)
	if err != nil {
		return nil, nil, err
	}
	b, err := container.OpenBundle(state.Bundle)
	return state, b, err
}

// Look is the createRuntime hook of a container with a NIC: it binds the NIC and checks the container's root. If refused is not nil,
// another container has the NIC, or no daemon runs, and this container must not start. Other errors do not keep it from starting.
func (h *Hook) Look(device string) (refused, err error) {
	state, bundle, err := h.bundle()
	if err != nil {
		return nil, err
	}
	if refused, err = h.bind(state, device); refused != nil {
		return refused, nil
	}
	if err == nil {
		err = h.check(state, bundle, device)
	}
	if absent(err) {
		return fmt.Errorf("container %s cannot start with NIC %s: no vrdma daemon serves %s; start it (systemctl start vrdma, or vrdma daemon)", state.Name(), device, h.Place.Socket), nil
	}
	return nil, err
}

// absent reports whether an error says that no daemon serves the socket.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// bind binds a declared NIC to the container's network namespace, unless the container uses the host's. refused says which container
// has the NIC already.
func (h *Hook) bind(state *container.State, device string) (refused, err error) {
	key, cookie := keyOfDevice(device), workloadOf(state.Pid)
	if key == (tenant.Key{}) || cookie == 0 {
		return nil, nil
	}
	is, err := control.Plug(h.Place.Socket, control.Binding{
		NIC: key, Cookie: cookie, Namespace: fmt.Sprintf("/proc/%d/ns/net", state.Pid), Container: state.ID, Name: state.Name(), Ends: true,
	})
	if is.Missing != "" {
		fmt.Fprintf(h.Log, "vrdma: container %s with NIC %s: %s: %s\n", state.Name(), device, events.OnlyRDMA, is.Missing)
	}
	if e := (*control.Error)(nil); errors.As(err, &e) && e.InUse {
		return fmt.Errorf("container %s cannot start: %w", state.Name(), err), nil
	}
	if err != nil {
		return nil, fmt.Errorf("the NIC cannot be bound to the container: %w", err)
	}
	return nil, nil
}

// End is the poststop hook of a container with a NIC: it releases the NIC.
func (h *Hook) End(device string) error {
	state, err := container.ReadState(h.State)
	if err != nil {
		return err
	}
	key := keyOfDevice(device)
	if key == (tenant.Key{}) {
		return nil
	}
	return control.Unbind(h.Place.Socket, control.Binding{NIC: key, Container: state.ID})
}

// check reports what keeps programs of the container from the NIC, to the log and to the daemon.
func (h *Hook) check(state *container.State, bundle *container.Bundle, device string) error {
	root, err := bundle.Root()
	if err != nil {
		return err
	}
	found, err := preflight.Start(root, bundle.Program())
	if err != nil {
		return fmt.Errorf("the container's root is not checked: %v", err) // not %w: see absent
	}
	told := control.Container{ID: state.ID, Name: state.Name(), NIC: keyOfDevice(device)}
	for _, f := range found {
		told.Warnings = append(told.Warnings, f.String())
		fmt.Fprintf(h.Log, "vrdma: container %s with NIC %s: %v\n", told.Name, device, f)
	}
	told.Cookie = workloadOf(state.Pid)
	uid, gids := bundle.User()
	if outside, ok := onHost(state.Pid, "uid_map", uid); ok {
		told.User = &outside
	}
	for _, gid := range gids {
		if outside, ok := onHost(state.Pid, "gid_map", gid); ok {
			told.Groups = append(told.Groups, outside)
		}
	}
	more, err := control.Tell(h.Place.Socket, told)
	if err != nil {
		return fmt.Errorf("cannot tell the daemon: %w", err)
	}
	for _, text := range more {
		fmt.Fprintf(h.Log, "vrdma: container %s with NIC %s: %s\n", told.Name, device, text)
	}
	return nil
}

// onHost translates an ID of a container to the host's. The hook may be in a user namespace of its own, that of a rootless engine.
func onHost(pid int, file string, id int) (int, bool) {
	id, ok := mapped(fmt.Sprintf("/proc/%d/%s", pid, file), id)
	if !ok {
		return 0, false
	}
	return mapped("/proc/self/"+file, id)
}

// mapped translates an ID by a uid_map or gid_map (user_namespaces(7)): lines of the first ID inside, the first outside, a number.
func mapped(path string, id int) (int, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		var inside, outside, n int
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && id >= inside && id-inside < n {
			return outside + id - inside, true
		}
	}
	return 0, false
}

// keyOfDevice is the key of a NIC that engines call TENANT.NAME; zero for the default NIC.
func keyOfDevice(device string) (k tenant.Key) {
	if of, name, ok := strings.Cut(strings.Replace(device, "/", ".", 1), "."); ok {
		k = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	return k
}

// workloadOf is the cookie of a container's network namespace; 0: it is not known, or it is the host's.
func workloadOf(pid int) uint64 {
	if pid <= 0 {
		return 0
	}
	cookie, err := credentials.CookieAt(fmt.Sprintf("/proc/%d/ns/net", pid))
	own, oerr := credentials.CookieAt("/proc/self/ns/net")
	if err != nil || oerr != nil || cookie == own {
		return 0
	}
	return cookie
}

// Merge is a createContainer hook: it merges the image's /etc/ld.so.preload with the NIC's, in the container's namespaces.
func (h *Hook) Merge() error {
	_, bundle, err := h.bundle()
	if err != nil {
		return err
	}
	root, err := bundle.Root()
	if err != nil {
		return err
	}
	_, err = container.Merge(root)
	return err
}

// TellRuntime writes the reason why a container does not start to the stderr of crun, which discards the stderr of hooks. An engine
// shows crun's stderr only if it cannot parse crun's log, in which crun writes that a hook failed but not why. So the reason goes to
// the log, too, in front of crun's line. Podman then shows the stderr.
func TellRuntime(why error) {
	runtime := fmt.Sprintf("/proc/%d/", os.Getppid())
	name, err := os.ReadFile(runtime + "comm")
	if err != nil || strings.TrimSpace(string(name)) != "crun" {
		return
	}
	text := fmt.Sprintf("vrdma: %v\n", why)
	appendTo(runtime+"fd/2", text)
	args, err := os.ReadFile(runtime + "cmdline")
	if err != nil {
		return
	}
	list := strings.Split(string(args), "\x00")
	for i, a := range list {
		path, is := strings.CutPrefix(a, "--log=")
		if a == "--log" && i+1 < len(list) {
			path, is = list[i+1], true
		}
		if is && filepath.IsAbs(path) {
			line, _ := json.Marshal(map[string]string{"msg": strings.TrimSpace(text), "level": "error", "time": time.Now().UTC().Format(time.RFC3339Nano)}) // strings only
			appendTo(path, string(line)+"\n")
		}
	}
}

// appendTo appends to a file that exists. It ignores errors: the reason is on stderr as well.
func appendTo(path, text string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	f.WriteString(text)
}
