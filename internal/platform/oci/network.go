package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"vrdma/internal/caller"
	"vrdma/internal/container"
	"vrdma/internal/control"
	"vrdma/internal/launch"
	"vrdma/internal/tenant"
)

// A container may ask for a network, and not for a NIC: --device vrdma.io/network=red.train. Its hooks make a NIC there that is
// named after the container, with an address that is allocated, and take it away when the container is deleted. It is a NIC like those
// that somebody declares: vrdma get shows it, policies know it by its network and labels, it counts against the tenant's quota.
//
//	createRuntime    make     declares the NIC, binds it to the container's network namespace
//	createContainer  mount    mounts its directory over that of the CDI file, which is the same for all containers
//	poststop         unmake   deletes it
//
// A hook makes it, and not the daemon when a program first opens something, because the directory that is mounted says which NIC
// a program has: there is one for each NIC, and the CDI file, which is written before, can name only one.
//
// Where poststop does not come, because the engine was killed, the next make finds what is left, if it can tell: processes have their
// numbers as long as the host is up, and in one process namespace. What is left from before the host went down is known by the machine's
// number (/etc/machine-id) and the name of the daemon's host; without a number it stays until somebody deletes it: another host may have
// the same name, and share the store. Machines that were cloned may have the same number, and even the same name: then their daemons have
// different ones (--host-name), so that is the name that counts, and no daemon takes a NIC that is on another one's host.

// Labels of such a NIC: for which container it is, on which host, and where that is seen to be there.
const (
	labelContainer = "vrdma.io/container"
	labelOnHost    = "vrdma.io/on-host" // its daemon's name
	labelMachine   = "vrdma.io/machine" // made of what /etc/machine-id says, if it is there
	labelBoot      = "vrdma.io/boot"    // BOOT.INODE, of the process namespace
	labelProcess   = "vrdma.io/process" // PID.DEVICE.INODE, of its network namespace
)

// madeKey is the NIC of a container in a network, TENANT.NETWORK.
func madeKey(state *container.State, network string) (k tenant.Key, of string, err error) {
	t, name, ok := strings.Cut(network, ".")
	if !ok {
		return k, "", fmt.Errorf("network %q: write TENANT.NETWORK", network)
	}
	return tenant.Key{Kind: tenant.KindNIC, Tenant: t, Name: state.NIC()}, name, nil
}

// A making is what a hook for a container with a NIC of its own is about.
type making struct {
	state   *container.State
	place   launch.Place // the daemon's
	key     tenant.Key   // the NIC
	network string       // its name in the tenant
}

// makingOf reads what an engine tells a hook.
func makingOf(o *options, network string) (m making, err error) {
	if m.state, err = container.ReadState(os.Stdin); err != nil {
		return m, err
	}
	if m.place, err = o.place(); err != nil {
		return m, err
	}
	m.key, m.network, err = madeKey(m.state, network)
	return m, err
}

// makeFor makes the NIC.
func makeFor(o *options, w io.Writer, network string) error {
	m, err := makingOf(o, network)
	if err != nil {
		return err
	}
	state, place, key := m.state, m.place, m.key
	bundle, err := container.OpenBundle(state.Bundle)
	if err != nil {
		return err
	}
	if workloadOf(state.Pid) == 0 {
		return fmt.Errorf("container %s cannot start: it has no network namespace of its own, by which a NIC would be its: leave out --network host", state.Name())
	}
	host, err := collectMade(place, key.Tenant)
	if err != nil {
		return fmt.Errorf("container %s cannot start: no NIC can be made for it in network %s: %w", state.Name(), network, err)
	}
	text, err := madeText(key, m.network, host, state)
	if err != nil {
		return err
	}
	reply, err := control.Apply(place.Socket, []control.File{{Name: "container " + state.Name(), Text: text}}, false)
	undo := func() error { return nil }
	if err == nil {
		if slices.Contains(reply.Results, control.Result{Key: key, Verb: "created"}) { // and not one that was there
			undo = func() error { return deleteMade(place, key) }
		}
		if len(reply.Warnings) > 0 {
			err = errors.Join(errors.New(strings.Join(reply.Warnings, "; ")), undo())
		}
	}
	if err != nil {
		return fmt.Errorf("container %s cannot start: no NIC can be made for it in network %s: %w", state.Name(), network, err)
	}
	device := key.Tenant + "." + key.Name
	refused, err := bindTo(place, w, state, device)
	if err = errors.Join(refused, err); err != nil {
		return errors.Join(err, undo())
	}
	if err := lookAtRoot(place, w, state, bundle, device); err != nil {
		fmt.Fprintf(w, "vrdma: NIC %s: %v\n", device, err) // the container starts all the same
	}
	return nil
}

// madeText is what is declared.
func madeText(key tenant.Key, network, host string, state *container.State) (string, error) {
	space, err := caller.NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", state.Pid))
	if err != nil {
		return "", err
	}
	boot, err := bootLabel()
	if err != nil {
		return "", err
	}
	labels := map[string]string{
		labelContainer: strings.TrimPrefix(key.Name, "c-"), labelOnHost: asLabel(host), labelBoot: boot, labelProcess: processLabel(state.Pid, space),
	}
	if machine := machineLabel(machineID); machine != "" {
		labels[labelMachine] = machine
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "vrdma.io/v1", "kind": tenant.KindNIC,
		"metadata": map[string]any{"name": key.Name, "tenant": key.Tenant, "labels": labels},
		"spec":     map[string]any{"network": network},
	})
	return string(text), err
}

// processLabel says of which process a namespace is.
func processLabel(pid int, space string) string {
	return fmt.Sprintf("%d.%s", pid, strings.ReplaceAll(space, ":", "."))
}

// bootLabel says where the number of a process means the one that we mean.
func bootLabel() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("/proc/self/ns/pid has no inode")
	}
	return asLabel(fmt.Sprintf("%s.%d", strings.TrimSpace(string(boot)), st.Ino)), nil
}

const machineID = "/etc/machine-id"

// machineLabel says which machine this is, by the file with its number; empty: it has none. The number itself is not for everybody
// (machine-id(5)), and tenants read labels: so it is a hash for us alone, with the number as its key.
func machineLabel(file string) string {
	id := machineNumber(file)
	if id == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(id))
	h.Write([]byte(labelMachine))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// machineLabels are what NICs of this machine may have as that label: earlier versions wrote the number itself.
func machineLabels(file string) []string {
	if id := machineNumber(file); id != "" {
		return []string{machineLabel(file), id}
	}
	return nil
}

// machineNumber is what the file says; empty: it has none, as in an image ("uninitialized").
func machineNumber(file string) string {
	text, _ := os.ReadFile(file) // there may be none
	id := strings.TrimSpace(string(text))
	if number, err := hex.DecodeString(id); err != nil || len(number) != 16 {
		return ""
	}
	return id
}

// asLabel makes a value of a label: at most 63 letters, digits and a few others.
func asLabel(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.') {
			return r
		}
		return '-'
	}, s)
	return strings.Trim(s[:min(len(s), 63)], "-.")
}

// mountMade mounts the NIC's directory, in the container's namespaces.
func mountMade(o *options, network string) error {
	m, err := makingOf(o, network)
	if err != nil {
		return err
	}
	bundle, err := container.OpenBundle(m.state.Bundle)
	if err != nil {
		return err
	}
	at, err := m.place.NIC(m.key.Tenant, m.key.Name)
	if err != nil {
		return err
	}
	root, err := bundle.Root()
	if err != nil {
		return err
	}
	if err := container.MountNIC(root, filepath.Dir(at.Socket)); err != nil {
		return fmt.Errorf("container %s cannot start: its NIC cannot be mounted: %w", m.state.Name(), err)
	}
	return nil
}

// unmake takes the NIC away.
func unmake(o *options, network string) error {
	m, err := makingOf(o, network)
	if err != nil {
		return err
	}
	return deleteMade(m.place, m.key)
}

// deleteMade deletes a NIC, and what is left of the container loses it.
func deleteMade(place launch.Place, key tenant.Key) error {
	_, err := control.Delete(place.Socket, []tenant.Key{key}, true, false)
	return err
}

// collectMade deletes the NICs of a tenant's containers on this host that are gone, and of which nobody has said so. It returns what the
// daemon calls this host.
func collectMade(place launch.Place, of string) (host string, err error) {
	boot, err := bootLabel()
	if err != nil {
		return "", err
	}
	reply, err := control.Get(place.Socket, control.Selection{Kind: tenant.KindNIC, Tenant: of, Labels: map[string]string{labelBoot: boot}})
	if err != nil {
		return "", err
	}
	host = reply.Host
	if host == "" { // a daemon that is older than we are, or we may not see hosts
		if host, err = os.Hostname(); err != nil {
			return "", err
		}
	}
	items := reply.Items
	for _, machine := range machineLabels(machineID) {
		reply, err := control.Get(place.Socket, control.Selection{Kind: tenant.KindNIC, Tenant: of, Labels: map[string]string{labelMachine: machine, labelOnHost: asLabel(host)}})
		if err != nil {
			return "", err
		}
		items = append(items, reply.Items...)
	}
	for _, item := range items {
		if toCollect(item, host, boot) {
			deleteMade(place, item.Key) // fails if another hook does it, too, or it was in both
		}
	}
	return host, nil
}

// toCollect reports whether a NIC of this machine was made by a daemon of this host, is on no other one, and its container is gone.
func toCollect(item control.Item, host, boot string) bool {
	o, err := tenant.Unmarshal(item.Object)
	n, ok := o.(*tenant.NIC)
	if err != nil || !ok || !strings.HasPrefix(n.Metadata.Name, "c-") || n.Metadata.Labels[labelOnHost] != asLabel(host) {
		return false
	}
	// Without a status the daemon does not know it yet: the next container collects it.
	if item.Status == nil || item.Status.State == control.Elsewhere || item.Status.Host != "" && item.Status.Host != host {
		return false
	}
	return madeIsGone(n.Metadata.Labels, boot)
}

// madeIsGone reports whether the container of a NIC of this machine is surely gone: the machine went down since, or its process has ended.
func madeIsGone(labels map[string]string, boot string) bool {
	was, _, _ := strings.Cut(labels[labelBoot], ".")
	if now, _, _ := strings.Cut(boot, "."); was != now {
		return was != ""
	}
	label := labels[labelProcess]
	pid, _, ok := strings.Cut(label, ".")
	if !ok || labels[labelBoot] != boot { // in another process namespace
		return false
	}
	space, err := caller.NamespaceAt("/proc/" + pid + "/ns/net")
	return err != nil || pid+"."+strings.ReplaceAll(space, ":", ".") != label
}
