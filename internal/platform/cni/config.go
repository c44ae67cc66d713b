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

// Versions of the interface that we know, oldest first.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// since is the version that has a command first.
var since = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// A Config is what the engine gives on stdin: one plugin's part of a network's configuration, with what the
// engine adds.
type Config struct {
	Version string `json:"cniVersion"`
	Name    string `json:"name"` // the network's
	Type    string `json:"type"`

	// NIC is the one that containers in the network have: TENANT.NAME, or NAME of Tenant.
	NIC string `json:"nic"`
	// Tenant is the one whose NICs containers may ask for, where NIC does not say which.
	Tenant string `json:"tenant"`
	// Socket is the daemon's; "": the default one.
	Socket string `json:"socket"`

	Previous json.RawMessage `json:"prevResult"`
	Valid    []Attachment    `json:"cni.dev/valid-attachments"`
	// What a container asks for: cni of args, and the annotations of a pod, if the network's configuration declares that capability.
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

// mostConfig bounds a configuration. A garbage collection names all containers of a host.
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
		c.Version = "0.1.0" // as the standard says
	}
	return c, nil
}

// check says why a command cannot be done with this configuration.
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

// nic is the NIC for the container; the zero key: it asks for none. Of a configuration without NIC the container decides, among
// those of one tenant: nobody's annotation says who somebody is.
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

// wish is what the container asks for.
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

// A call is what the environment says.
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

// name is what people call the container: a pod's namespace and name, else what lists of engines show.
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

// Codes of errors: those of the standard, and from 100 on our own.
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

// An Error is one as CNI has it.
type Error struct {
	Version string `json:"cniVersion"`
	Code    int    `json:"code"`
	Message string `json:"msg"`
}

func (e *Error) Error() string { return e.Message }

func fail(code int, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf("vrdma: "+format, args...)}
}
