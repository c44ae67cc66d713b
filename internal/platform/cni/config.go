package cni

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Versions are the supported versions of CNI, oldest first.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// since is the first version that has a command.
var since = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// A Config is the plugin's part of a network's configuration, with the engine's additions, from stdin.
type Config struct {
	Version string `json:"cniVersion"`
	Name    string `json:"name"` // of the network
	Type    string `json:"type"`

	// NIC is the NIC of containers in the network: TENANT.NAME, or NAME of Tenant.
	NIC string `json:"nic"`
	// Tenant is the tenant whose NICs containers may name, if NIC names none.
	Tenant string `json:"tenant"`
	// Socket is the daemon's socket; "": the default.
	Socket string `json:"socket"`

	Previous json.RawMessage `json:"prevResult"`
	Valid    []Attachment    `json:"cni.dev/valid-attachments"`
	// The container's wishes: cni of args, and the pod's annotations, if the network's configuration declares that capability.
	Args struct {
		CNI map[string]json.RawMessage `json:"cni"`
	} `json:"args"`
	Runtime struct {
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	} `json:"runtimeConfig"`
}

// An Attachment is an interface of a container.
type Attachment struct {
	Container string `json:"containerID"`
	Interface string `json:"ifname"`
}

// mostConfig bounds a configuration. GC lists all containers of a host.
const mostConfig = 16 << 20

func readConfig(r io.Reader) (*Config, error) {
	text, err := io.ReadAll(io.LimitReader(r, mostConfig+1))
	if err != nil {
		return nil, fail(codeIO, "the network's configuration, on stdin: %v", err)
	}
	if len(text) > mostConfig {
		return nil, fail(codeDecode, "the network's configuration has more than %d bytes", mostConfig)
	}
	c := new(Config)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fail(codeDecode, "the network's configuration, on stdin, is not what CNI says: %v", err)
	}
	if c.Version == "" {
		c.Version = "0.1.0" // the default of the CNI specification
	}
	return c, nil
}

// check returns an error if the configuration does not support the command.
func (c *Config) check(command string) error {
	at := slices.Index(Versions, c.Version)
	if at < 0 {
		return fail(codeVersion, "CNI %s is not known here: want one of %s", c.Version, strings.Join(Versions, ", "))
	}
	if first, ok := since[command]; ok && at < slices.Index(Versions, first) {
		return fail(codeVersion, "CNI %s has no %s: %s has", c.Version, command, first)
	}
	if c.Name == "" {
		return fail(codeConfig, "the network's configuration has no name")
	}
	return nil
}

// nic returns the NIC for the container; the zero key: none. If the configuration names no NIC, the container chooses one of the
// configured tenant. An annotation never chooses the tenant.
func (c *Config) nic() (k tenant.Key, err error) {
	name := c.NIC
	if name == "" {
		if name, err = c.wish(); err != nil || name == "" {
			return k, err
		}
		if c.Tenant == "" {
			return k, fail(codeConfig, "the container asks for NIC %q, and the network's configuration does not say of which tenant: it wants \"tenant\", or \"nic\"", name)
		}
	}
	of, nic, ok := strings.Cut(strings.Replace(name, "/", ".", 1), ".")
	if !ok {
		of, nic = c.Tenant, name
	}
	k = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: nic}
	if of == "" || !k.Valid() {
		return k, fail(codeConfig, "there is no NIC %q: want TENANT.NAME of a declared one", name)
	}
	if c.Tenant != "" && of != c.Tenant {
		return k, fail(codeConfig, "NIC %q is not of tenant %s, whose network this is", name, c.Tenant)
	}
	return k, nil
}

// wish returns the NIC that the container names.
func (c *Config) wish() (string, error) {
	if name := c.Runtime.Annotations[container.Kind]; name != "" {
		return name, nil
	}
	text, ok := c.Args.CNI[container.Kind]
	if !ok {
		return "", nil
	}
	var name string
	if err := json.Unmarshal(text, &name); err != nil {
		return "", fail(codeDecode, "args.cni[%q] is not a text: %v", container.Kind, err)
	}
	return name, nil
}

// A call holds the CNI variables of the environment.
type call struct {
	command string
	Attachment
	namespace string
	args      map[string]string
}

var (
	containerID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,255}$`)
	ifName      = regexp.MustCompile(`^[^\s/:]{1,15}$`)
)

func readCall(getenv func(string) string) (*call, error) {
	c := &call{
		command: getenv("CNI_COMMAND"), namespace: getenv("CNI_NETNS"), args: make(map[string]string),
		Attachment: Attachment{getenv("CNI_CONTAINERID"), getenv("CNI_IFNAME")},
	}
	for pair := range strings.SplitSeq(getenv("CNI_ARGS"), ";") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			c.args[name] = value
		}
	}
	switch c.command {
	case "":
		return nil, fail(codeEnvironment, "CNI_COMMAND is not set: this is a CNI plugin, which engines run; see vrdma cni --help")
	case "VERSION", "GC", "STATUS":
		return c, nil
	case "ADD", "DEL", "CHECK":
	default:
		return nil, fail(codeEnvironment, "CNI_COMMAND=%.40s: want ADD, DEL, CHECK, GC, STATUS or VERSION", c.command)
	}
	switch {
	case !containerID.MatchString(c.Container):
		return nil, fail(codeEnvironment, "CNI_CONTAINERID=%.80q is not what CNI says", c.Container)
	case !ifName.MatchString(c.Interface):
		return nil, fail(codeEnvironment, "CNI_IFNAME=%.80q is not what CNI says", c.Interface)
	case c.namespace == "" && c.command != "DEL":
		return nil, fail(codeEnvironment, "CNI_NETNS is not set, and %s wants it", c.command)
	}
	return c, nil
}

// name returns the container's name for people: a pod's namespace and name, else the short ID that engines show.
func (c *call) name() string {
	space, pod := c.args["K8S_POD_NAMESPACE"], c.args["K8S_POD_NAME"]
	if pod != "" && space != "" && space != pod {
		return space + "/" + pod
	}
	if pod != "" {
		return pod
	}
	return (&container.State{ID: c.Container}).Name()
}

// Error codes: those of the CNI specification, and from 100 on the plugin's own.
const (
	codeVersion     = 1
	codeEnvironment = 4
	codeIO          = 5
	codeDecode      = 6
	codeConfig      = 7
	codeLater       = 11
	codeUnavailable = 50
	codeRefused     = 100
	codeAlone       = 101
)

// An Error is an error in CNI's format.
type Error struct {
	Version string `json:"cniVersion"`
	Code    int    `json:"code"`
	Message string `json:"msg"`
}

func (e *Error) Error() string { return e.Message }

func fail(code int, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf("vrdma: "+format, args...)}
}
