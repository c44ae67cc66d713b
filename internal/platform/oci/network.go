package oci

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A container may ask for a network instead of a NIC: --device vrdma.io/network=red.train. Its hooks declare a NIC in that network,
// named after the container and with an allocated address, and delete it with the container. It is a NIC like any declared one:
// vrdma get lists it, policies select it by network and labels, and it counts against the tenant's quota.
//
//	createRuntime    Make     declares the NIC, binds it to the container's network namespace
//	createContainer  Mount    mounts its directory over that of the CDI file, which is the same for all containers
//	poststop         Unmake   deletes it
//
// A hook makes the NIC, not the daemon at the first open, because the mounted directory decides which NIC a program gets. There is one
// directory for each NIC, and the CDI file, which is written before, can name only one.
//
// If the engine is killed poststop does not run. The next Make deletes what is left, as far as it can tell: process numbers are valid
// during one boot and in one process namespace. NICs from before a reboot are recognised by the machine's number (/etc/machine-id) and
// the daemon's host name. Without a number they stay until an operator deletes them: another host may have the same name and share the
// store. Cloned machines may have the same number and even the same name. Their daemons then need different names (--host-name): the
// name counts, and no daemon takes a NIC that is on another daemon's host.

// Labels of such a NIC: its container, its host, and the process that proves that the container exists.
const (
	labelContainer = "vrdma.io/container"
	labelOnHost    = "vrdma.io/on-host" // its daemon's name
	labelMachine   = "vrdma.io/machine" // made of what /etc/machine-id says, if it is there
	labelBoot      = "vrdma.io/boot"    // BOOT.INODE, of the process namespace
	labelProcess   = "vrdma.io/process" // PID.DEVICE.INODE, of its network namespace
)

// madeKey is the key of a container's NIC in a network, TENANT.NETWORK, and the name of the network.
func madeKey(state *container.State, network string) (k tenant.Key, of string, err error) {
	t, name, ok := strings.Cut(network, ".")
	if !ok {
		return k, "", fmt.Errorf("network %q: write TENANT.NETWORK", network)
	}
	return tenant.Key{Kind: tenant.KindNIC, Tenant: t, Name: state.NIC()}, name, nil
}

// A request is what a hook for a container with a NIC of its own is about.
type request struct {
	state   *container.State
	key     tenant.Key // the NIC
	network string     // its name in the tenant
}

// request reads the state of the container and the name of its NIC in a network.
func (h *Hook) request(network string) (r request, err error) {
	if r.state, err = container.ReadState(h.State); err != nil {
		return r, err
	}
	r.key, r.network, err = madeKey(r.state, network)
	return r, err
}

// Make is the createRuntime hook of a container in a network: it declares a NIC for it and does what Look does.
func (h *Hook) Make(network string) error {
	m, err := h.request(network)
	if err != nil {
		return err
	}
	state, place, key := m.state, h.Place, m.key
	bundle, err := container.OpenBundle(state.Bundle)
	if err != nil {
		return err
	}
	if workloadOf(state.Pid) == 0 {
		return fmt.Errorf("container %s cannot start: it has no network namespace of its own, which a NIC needs: leave out --network host", state.Name())
	}
	host, err := collectMade(place, key.Tenant)
	if err != nil {
		return fmt.Errorf("container %s cannot start: cannot create a NIC for it in network %s: %w", state.Name(), network, err)
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
		return fmt.Errorf("container %s cannot start: cannot create a NIC for it in network %s: %w", state.Name(), network, err)
	}
	device := key.Tenant + "." + key.Name
	refused, err := h.bind(state, device)
	if err = errors.Join(refused, err); err != nil {
		return errors.Join(err, undo())
	}
	if err := h.check(state, bundle, device); err != nil {
		fmt.Fprintf(h.Log, "vrdma: NIC %s: %v\n", device, err) // the container starts all the same
	}
	return nil
}

// madeText is the NIC as an object to apply.
func madeText(key tenant.Key, network, host string, state *container.State) (string, error) {
	space, err := credentials.NamespaceAt(fmt.Sprintf("/proc/%d/ns/net", state.Pid))
	if err != nil {
		return "", err
	}
	boot, err := container.BootLabel()
	if err != nil {
		return "", err
	}
	labels := map[string]string{
		labelContainer: strings.TrimPrefix(key.Name, "c-"), labelOnHost: container.Label(host), labelBoot: boot, labelProcess: processLabel(state.Pid, space),
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

// processLabel identifies a process and its network namespace.
func processLabel(pid int, space string) string {
	return fmt.Sprintf("%d.%s", pid, strings.ReplaceAll(space, ":", "."))
}

const machineID = "/etc/machine-id"

// machineLabel identifies this machine by the file with its number; empty: it has none. The number is confidential
// (machine-id(5)) and tenants read labels, so the label is a keyed hash of it.
func machineLabel(file string) string {
	id := machineNumber(file)
	if id == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(id))
	h.Write([]byte(labelMachine))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// machineLabels are the values of that label that mean this machine: earlier versions wrote the number itself.
func machineLabels(file string) []string {
	if id := machineNumber(file); id != "" {
		return []string{machineLabel(file), id}
	}
	return nil
}

// machineNumber is the number in the file; empty: there is none, as in an image ("uninitialized").
func machineNumber(file string) string {
	text, _ := os.ReadFile(file) // there may be none
	id := strings.TrimSpace(string(text))
	if number, err := hex.DecodeString(id); err != nil || len(number) != 16 {
		return ""
	}
	return id
}

// Mount is the createContainer hook of a container in a network: it mounts the directory of its NIC, in the container's namespaces.
func (h *Hook) Mount(network string) error {
	m, err := h.request(network)
	if err != nil {
		return err
	}
	bundle, err := container.OpenBundle(m.state.Bundle)
	if err != nil {
		return err
	}
	at, err := h.Place.NIC(m.key.Tenant, m.key.Name)
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

// Unmake is the poststop hook of a container in a network: it deletes its NIC.
func (h *Hook) Unmake(network string) error {
	m, err := h.request(network)
	if err != nil {
		return err
	}
	return deleteMade(h.Place, m.key)
}

// deleteMade deletes a NIC, also while programs use it.
func deleteMade(place launch.Place, key tenant.Key) error {
	_, err := control.Delete(place.Socket, []tenant.Key{key}, true, false)
	return err
}

// collectMade deletes the NICs of a tenant's containers on this host that have ended without poststop. It returns the name of this
// host at the daemon.
func collectMade(place launch.Place, of string) (host string, err error) {
	boot, err := container.BootLabel()
	if err != nil {
		return "", err
	}
	reply, err := control.Get(place.Socket, control.Selection{Kind: tenant.KindNIC, Tenant: of, Labels: map[string]string{labelBoot: boot}})
	if err != nil {
		return "", err
	}
	host = reply.Host
	if host == "" { // an older daemon, or the caller may not see hosts
		if host, err = os.Hostname(); err != nil {
			return "", err
		}
	}
	items := reply.Items
	for _, machine := range machineLabels(machineID) {
		reply, err := control.Get(place.Socket, control.Selection{Kind: tenant.KindNIC, Tenant: of, Labels: map[string]string{labelMachine: machine, labelOnHost: container.Label(host)}})
		if err != nil {
			return "", err
		}
		items = append(items, reply.Items...)
	}
	for _, item := range items {
		if toCollect(item, host, boot) {
			deleteMade(place, item.Key) // fails if another hook has deleted it, or it was in both lists
		}
	}
	return host, nil
}

// toCollect reports whether a daemon of this host made the NIC, the NIC is on no other host, and its container has ended.
func toCollect(item control.Item, host, boot string) bool {
	o, err := tenant.Unmarshal(item.Object)
	n, ok := o.(*tenant.NIC)
	if err != nil || !ok || !strings.HasPrefix(n.Metadata.Name, "c-") || n.Metadata.Labels[labelOnHost] != container.Label(host) {
		return false
	}
	// Without a status the daemon does not know it yet: the next container collects it.
	if item.Status == nil || item.Status.State == control.Elsewhere || item.Status.Host != "" && item.Status.Host != host {
		return false
	}
	return madeIsGone(n.Metadata.Labels, boot)
}

// madeIsGone reports whether the container of a NIC of this machine has ended for certain: by a reboot, or with its process.
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
	if _, err := strconv.ParseUint(pid, 10, 31); err != nil { // an administrator of the tenant has changed the label
		return false
	}
	space, err := credentials.NamespaceAt("/proc/" + pid + "/ns/net")
	return err != nil || pid+"."+strings.ReplaceAll(space, ":", ".") != label
}
