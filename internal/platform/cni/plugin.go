package cni

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"slices"
	"syscall"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Daemon is the daemon that has the NICs.
type Daemon interface {
	// Ready returns an error if the daemon cannot serve.
	Ready() error
	Bind(control.Binding) error
	// Plug binds, and creates the NIC's interface in the container.
	Plug(control.Binding) (control.Interface, error)
	Unbind(...control.Binding) error
	Bindings() ([]control.Binding, error)
}

// A Plugin serves one call of an engine.
type Plugin struct {
	Getenv func(string) string
	// Daemon returns the daemon of a socket without contacting it; "": the default socket.
	Daemon func(socket string) (Daemon, error)
	// Cookie returns the cookie of a network namespace.
	Cookie func(path string) (uint64, error)
	// Interfaces returns the interfaces of a network namespace.
	Interfaces func(path string) ([]net.Interface, error)
}

// Run executes the engine's command. It prints an error to stdout in CNI's format and returns it.
func (p *Plugin) Run(in io.Reader, out io.Writer) error {
	version := Versions[0]
	result, err := p.run(in, &version)
	if err == nil {
		_, err = out.Write(result)
		return err
	}
	var told *Error
	if !errors.As(err, &told) {
		told = &Error{Code: codeRefused, Message: "vrdma: " + err.Error()}
	}
	told.Version = version
	if werr := json.NewEncoder(out).Encode(told); werr != nil {
		return werr
	}
	return told
}

func (p *Plugin) run(in io.Reader, version *string) (result []byte, err error) {
	call, err := readCall(p.Getenv)
	if err != nil {
		return nil, err
	}
	c, err := readConfig(in)
	if err != nil {
		return nil, err
	}
	*version = c.Version
	if call.command == "VERSION" {
		return json.Marshal(map[string]any{"cniVersion": c.Version, "supportedVersions": Versions})
	}
	if err := c.check(call.command); err != nil {
		return nil, err
	}
	d, err := p.Daemon(c.Socket)
	if err != nil {
		return nil, fail(codeConfig, "the daemon's socket %q: %v", c.Socket, err)
	}
	switch call.command {
	case "ADD":
		return p.add(call, c, d)
	case "DEL":
		return nil, p.del(call, c, d)
	case "CHECK":
		return nil, p.check(call, c, d)
	case "GC":
		return nil, p.collect(c, d)
	}
	if err := d.Ready(); err != nil {
		return nil, fail(codeUnavailable, "%v", err)
	}
	return nil, nil
}

// add binds the NIC.
func (p *Plugin) add(call *call, c *Config, d Daemon) ([]byte, error) {
	nic, err := c.nic()
	if err != nil {
		return nil, err
	}
	none := nic == tenant.Key{}
	if c.alone() && none {
		return nil, fail(codeAlone, "the plugin is alone in network %s, and neither the configuration nor the container names a NIC, whose interface it would make: give it \"nic\", or chain it after another plugin", c.Name)
	}
	if none {
		return c.result()
	}
	cookie, err := p.Cookie(call.namespace)
	if err != nil {
		return nil, fail(codeIO, "CNI_NETNS: %v", err)
	}
	b := control.Binding{
		NIC: nic, Cookie: cookie, Namespace: call.namespace, Container: call.Container, Interface: call.Interface, Network: c.Name, Name: call.name(),
	}
	var is control.Interface
	if c.alone() {
		is, err = d.Plug(b)
	} else {
		err = d.Bind(b)
	}
	switch {
	case unreachable(err):
		return nil, fail(codeLater, "no daemon answers: %v", err)
	case err != nil:
		return nil, fail(codeRefused, "%v", err)
	}
	if !c.alone() {
		return c.result()
	}
	if is.Name == "" {
		why := is.Missing
		if why == "" {
			why = "its network has no interfaces: only one with way vxlan has"
		}
		err := fail(codeAlone, "%v cannot be an interface of container %s: %s; chain the plugin after another, which gives the container its address", nic, call.name(), why)
		return nil, errors.Join(err, d.Unbind(p.attachment(call, c)))
	}
	return c.made(call, &is)
}

// made is the result for an interface that the daemon has made, in the version of the configuration.
func (c *Config) made(call *call, is *control.Interface) ([]byte, error) {
	i := types100.Interface{Name: is.Name, Mac: is.MAC, Sandbox: call.namespace}
	if slices.Index(Versions, c.Version) >= slices.Index(Versions, "1.1.0") {
		i.Mtu = is.MTU // earlier versions do not have it
	}
	r := types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: []*types100.Interface{&i}}
	for _, a := range is.Addresses {
		address := net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: address})
	}
	out, err := r.GetAsVersion(c.Version)
	if err != nil {
		return nil, fail(codeVersion, "%v", err)
	}
	return json.Marshal(out)
}

// unreachable reports whether an error means that no daemon answers.
func unreachable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// alone reports whether no plugin ran before this one.
func (c *Config) alone() bool { return len(c.Previous) == 0 || string(c.Previous) == "null" }

// result returns the previous plugin's result: this plugin does not change other interfaces.
func (c *Config) result() ([]byte, error) {
	var r map[string]json.RawMessage
	if err := json.Unmarshal(c.Previous, &r); err != nil || r == nil {
		return nil, fail(codeDecode, "prevResult is no result of CNI: %v", err)
	}
	r["cniVersion"], _ = json.Marshal(c.Version)
	return json.Marshal(r)
}

// attachment returns the binding of a container's interface, independent of the NIC in the configuration, which may have changed.
func (p *Plugin) attachment(call *call, c *Config) control.Binding {
	return control.Binding{Container: call.Container, Interface: call.Interface, Network: c.Name}
}

// del undoes add, if there is something to undo; the daemon also removes the interface. Without a daemon nothing is bound, and an
// interface is removed with the namespace.
func (p *Plugin) del(call *call, c *Config, d Daemon) error {
	if err := d.Unbind(p.attachment(call, c)); err != nil && !unreachable(err) {
		return fail(codeRefused, "%v", err)
	}
	return nil
}

// check returns an error if the state differs from the result of add.
func (p *Plugin) check(call *call, c *Config, d Daemon) error {
	nic, err := c.nic()
	if err != nil || nic == (tenant.Key{}) {
		return err
	}
	all, err := d.Bindings()
	if err != nil {
		return fail(codeLater, "%v", err)
	}
	var b *control.Binding
	if i := slices.IndexFunc(all, func(b control.Binding) bool { return b.NIC == nic }); i >= 0 {
		b = &all[i]
	}
	cookie, err := p.Cookie(call.namespace)
	switch {
	case err != nil:
		return fail(codeIO, "CNI_NETNS: %v", err)
	case b == nil:
		return fail(codeRefused, "%v is bound to nothing: any workload may have it", nic)
	case b.Cookie != cookie || b.Container != call.Container:
		return fail(codeRefused, "%v is bound to %s, and not to container %s", nic, b.Title(), call.name())
	}
	if b.Plug {
		return p.checkInterface(call)
	}
	return nil
}

// checkInterface returns an error if an interface that add created is missing or down. The daemon is its carrier.
func (p *Plugin) checkInterface(call *call) error {
	list, err := p.Interfaces(call.namespace)
	if err != nil {
		return fail(codeIO, "CNI_NETNS: %v", err)
	}
	i := slices.IndexFunc(list, func(i net.Interface) bool { return i.Name == call.Interface })
	switch {
	case i < 0:
		return fail(codeRefused, "container %s has no interface %s any more", call.name(), call.Interface)
	case list[i].Flags&(net.FlagUp|net.FlagRunning) != net.FlagUp|net.FlagRunning:
		return fail(codeRefused, "interface %s of container %s is down", call.Interface, call.name())
	}
	return nil
}

// collect removes bindings of this network whose container is gone because a DEL was lost.
func (p *Plugin) collect(c *Config, d Daemon) error {
	all, err := d.Bindings()
	if unreachable(err) {
		return nil // nothing is bound
	}
	if err != nil {
		return fail(codeLater, "%v", err)
	}
	valid := make(map[Attachment]bool, len(c.Valid))
	for _, a := range c.Valid {
		valid[a] = true
	}
	var gone []control.Binding
	for _, b := range all {
		if b.Network == c.Name && !valid[Attachment{b.Container, b.Interface}] {
			gone = append(gone, b)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return d.Unbind(gone...)
}
