package cni

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"
	"syscall"

	"vrdma/internal/control"
	"vrdma/internal/tenant"
)

// A Daemon has the NICs.
type Daemon interface {
	// Ready says why it cannot serve.
	Ready() error
	Bind(control.Binding) error
	Unbind(...control.Binding) error
	Bindings() ([]control.Binding, error)
}

// A Maker makes the interface of a NIC in a container: a plugin by itself does, one that is chained leaves the container's
// interfaces to others.
type Maker interface {
	// Plug makes it, or finds it made, and returns CNI's result in a version.
	Plug(k tenant.Key, namespace, name, version string) (json.RawMessage, error)
	// Unplug removes it. One that is not there is no error, nor is a namespace that is gone.
	Unplug(namespace, name string) error
	Check(k tenant.Key, namespace, name string) error
}

// A Plugin is one call of an engine.
type Plugin struct {
	Getenv func(string) string
	// Daemon is that of a socket, which is not asked yet; "" is the default one.
	Daemon func(socket string) (Daemon, error)
	// Cookie is that of a network namespace.
	Cookie func(path string) (uint64, error)
	Maker  Maker // nil: there is none
}

// Run does what the engine asks. An error has been told, as CNI says: on stdout.
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
	if c.alone() && (p.Maker == nil || none) {
		return nil, fail(codeAlone, "the plugin is alone in network %s, and cannot make the NIC's interface yet: chain it after another plugin, which gives the container its address", c.Name)
	}
	if none {
		return c.result()
	}
	cookie, err := p.Cookie(call.namespace)
	if err != nil {
		return nil, fail(codeIO, "CNI_NETNS: %v", err)
	}
	err = d.Bind(control.Binding{
		NIC: nic, Cookie: cookie, Namespace: call.namespace, Container: call.Container, Interface: call.Interface, Network: c.Name, Name: call.name(),
	})
	switch {
	case unreachable(err):
		return nil, fail(codeLater, "no daemon answers: %v", err)
	case err != nil:
		return nil, fail(codeRefused, "%v", err)
	}
	if !c.alone() {
		return c.result()
	}
	result, err := p.Maker.Plug(nic, call.namespace, call.Interface, c.Version)
	if err != nil {
		return nil, errors.Join(err, d.Unbind(p.attachment(call, c)))
	}
	return result, nil
}

// unreachable reports whether an error says that there is no daemon, for now.
func unreachable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// alone reports whether no other plugin comes before us.
func (c *Config) alone() bool { return len(c.Previous) == 0 || string(c.Previous) == "null" }

// result is that of the plugin before us: we change nothing of the container's interfaces.
func (c *Config) result() ([]byte, error) {
	var r map[string]json.RawMessage
	if err := json.Unmarshal(c.Previous, &r); err != nil || r == nil {
		return nil, fail(codeDecode, "prevResult is no result of CNI: %v", err)
	}
	r["cniVersion"], _ = json.Marshal(c.Version)
	return json.Marshal(r)
}

// attachment is what an interface of a container is bound by, whatever the configuration says of NICs by now.
func (p *Plugin) attachment(call *call, c *Config) control.Binding {
	return control.Binding{Container: call.Container, Interface: call.Interface, Network: c.Name}
}

// del undoes add, as far as there is something to undo. Without a daemon nothing is bound.
func (p *Plugin) del(call *call, c *Config, d Daemon) error {
	if c.alone() && p.Maker != nil && call.namespace != "" {
		if err := p.Maker.Unplug(call.namespace, call.Interface); err != nil {
			return err
		}
	}
	if err := d.Unbind(p.attachment(call, c)); err != nil && !unreachable(err) {
		return fail(codeRefused, "%v", err)
	}
	return nil
}

// check says what is not as add has left it.
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
		return fail(codeRefused, "%v is bound to nothing: the daemon has been started again since; any workload may have it", nic)
	case b.Cookie != cookie || b.Container != call.Container:
		return fail(codeRefused, "%v is bound to %s, and not to container %s", nic, b.Title(), call.name())
	}
	if c.alone() && p.Maker != nil {
		return p.Maker.Check(nic, call.namespace, call.Interface)
	}
	return nil
}

// collect unbinds what is left in this network of containers that are gone, whose DEL was lost.
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
