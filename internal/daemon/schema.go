package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Setting is one thing that the operator decides: a flag of vrdma daemon, a line of the configuration file, or both. The list of
// settings is the only definition of flags, file, reference page and what a reload can change.
type Setting struct {
	Key  string // in the file, with a dot between two levels; "": only a flag
	Flag string // "": only in the file
	Help string
	// Reload: vrdma reload changes the value in a running daemon.
	Reload bool
	// Choices are the possible values; none: any.
	Choices []string
	// Into is where the value is: *string, *bool, *int, *[]string or *tenant.Bytes.
	Into any

	check func(text string) error // of one value; nil: any
}

// NewOptions returns options with the default values.
func NewOptions() *Options {
	return &Options{Mode: "0600", LogFormat: "text", LogLevel: "info", Network: true, OverlayPort: overlay.DefaultPort, TunnelPort: overlay.DefaultTunnelPort}
}

// Settings returns all settings of o, in the order of the reference page.
func (o *Options) Settings() []Setting {
	list := []Setting{
		{Key: "socket", Into: &o.Socket, Help: "the daemon's socket; --socket and VRDMA_SOCKET override it (default: /var/lib/vrdma/vrdma.sock for root, else in XDG_RUNTIME_DIR or /tmp)"},
		{Key: "mode", Flag: "mode", Into: &o.Mode, check: checkMode, Help: "the socket's permissions; 0666 lets other users in"},
		{Key: "addr", Flag: "addr", Into: &o.Addr, check: checkAddress, Help: "the addresses that become the device's GIDs (default: this machine's, loopback last)"},
		{Key: "hostName", Flag: "host-name", Into: &o.HostName, Help: "this host's name in spec.host of NICs (default: the machine's name)"},

		{Key: "log.level", Flag: "log-level", Into: &o.LogLevel, Reload: true, Choices: []string{"debug", "info", "warn", "error"}, Help: "debug, info, warn or error"},
		{Key: "log.format", Flag: "log-format", Into: &o.LogFormat, Choices: []string{"text", "json"}, Help: "text or json"},

		{Key: "store", Flag: "store", Into: &o.Store, Help: "the file for declared objects, or etcd://HOST:PORT,… for many hosts"},
		{Key: "storeConfig", Flag: "store-config", Into: &o.StoreConfig, Help: "a YAML file with ca, certificate, key, user, passwordFile for etcd; files with secrets must be readable for this user only"},
		{Key: "usage", Flag: "usage", Into: &o.Usage, Help: "the file for usage records; none: keep none (default: beside the store; none with --ephemeral)"},
		{Key: "audit", Flag: "audit", Into: &o.Audit, Help: "the file for the audit log, which vrdma audit shows; none: keep none (default: beside the store; none with --ephemeral)"},

		{Key: "metrics.address", Flag: "metrics", Into: &o.Metrics, Reload: true, check: checkHostPort, Help: "serve metrics for Prometheus, /healthz and /readyz at HOST:PORT (default: none)"},
		{Key: "metrics.perNIC", Flag: "metrics-per-nic", Into: &o.PerNIC, Reload: true, Help: "add the label nic to metrics, for at most 256 NICs"},

		{Key: "network", Flag: "network", Into: &o.Network, Help: "serve other hosts: RoCEv2 on UDP port 4791 of all addresses but loopback"},
		{Key: "underlay", Flag: "underlay", Into: &o.Underlay, check: checkAddress, Help: "source addresses for packets of virtual networks between hosts, at most one IPv4 and one IPv6 address (default: the first of --addr, else those of the default route)"},
		{Key: "overlay.port", Flag: "overlay-port", Into: &o.OverlayPort, check: checkPort, Help: "the UDP port for packets of virtual networks (VXLAN); opened when a network has members on other hosts"},
		{Key: "overlay.tunnelPort", Flag: "tunnel-port", Into: &o.TunnelPort, check: checkPort, Help: "the UDP port for packets of encrypted networks (WireGuard); opened when such a network has members on other hosts"},
		{Key: "overlay.tunnelKey", Flag: "tunnel-key", Into: &o.TunnelKey, Help: "the file of this host's WireGuard private key, created when needed (default: in the default directory of --store)"},
		{Key: "noGSO", Flag: "no-gso", Into: &o.NoGSO, Help: "send each packet with its own system call"},
		{Key: "noGRO", Flag: "no-gro", Into: &o.NoGRO, Help: "receive each packet with its own system call"},
		{Key: "noRecognise", Flag: "no-recognise", Into: &o.NoRecognise, Help: "treat other vrdma hosts like the kernel's rxe: use no protocol extension"},
		{Key: "noDefaultNIC", Flag: "no-default-nic", Into: &o.NoDefault, Help: "have declared NICs only: programs name theirs with vrdma run --nic, or have its directory mounted; --addr lists the addresses for NICs of networks with way host"},

		{Key: "cdi", Flag: "cdi", Into: &o.CDI, Help: "the directory for CDI files, with which podman and other engines find the NICs (vrdma cdi prints them); none: write none (default: " + SystemCDI + " for root's daemon with its socket in /run or /var/lib; else none)"},
		{Key: "hook", Flag: "hook", Into: &o.Hook, Help: "the path of vrdma in the engines' mount namespace, for hooks in CDI files; none: no hooks (default: this program). Needed if the daemon is in a container"},
		{Key: "guest", Flag: "guest", Into: &o.Guests, Help: "NICs for programs in virtual machines, default or TENANT/NAME: creates sockets for QEMU, see vrdma guest args (default: none)"},
		{Key: "loops", Flag: "loops", Into: &o.Loops, check: checkLoops, Help: "the number of loops, each a thread that moves the data of some programs: 1 to 64, or auto for as many as the traffic needs and processors are free (default: the value of VRDMA_LOOPS; else auto with --ephemeral, as vrdma run starts it, and 1 without)"},
		{Key: "ephemeral", Flag: "ephemeral", Into: &o.Ephemeral, Help: "end after the last program has ended"},
		{Key: "containerTakeover", Flag: "container-takeover", Into: &o.ContainerTakeover, Help: "let a daemon of the same user in another container take over; it needs the machine's pid and user namespaces and this control socket (see maxSurge of a DaemonSet)"},
		{Key: "cpuProfile", Flag: "cpuprofile", Into: &o.Profile, Help: "write a CPU profile to this file at the end, for go tool pprof"},
	}
	l := &o.Limits
	for _, s := range []struct {
		name string
		into any
		what string
	}{
		{"pds", &l.PDs, "protection domains"}, {"cqs", &l.CQs, "completion queues"}, {"qps", &l.QPs, "queue pairs"}, {"mrs", &l.MRs, "memory regions"},
		{"mws", &l.MWs, "memory windows"}, {"srqs", &l.SRQs, "shared receive queues"}, {"ahs", &l.AHs, "address handles"}, {"channels", &l.Channels, "completion channels"},
		{"memory", &l.Memory, "registered memory for each process"},
	} {
		help := "the most " + s.what + " of an opened device of NIC default; 0: the built-in limit"
		if s.name == "memory" {
			help = "the most " + s.what + " of NIC default, such as 1Gi; 0: the built-in limit"
		}
		list = append(list, Setting{Key: "limits." + s.name, Into: s.into, Help: help})
	}
	return list
}

// Set sets the value from a text. A list has one element for each call.
func (s *Setting) Set(text string) error {
	if len(s.Choices) > 0 && !slices.Contains(s.Choices, text) {
		return fmt.Errorf("choose %s", orList(s.Choices))
	}
	if s.check != nil {
		if err := s.check(text); err != nil {
			return err
		}
	}
	switch into := s.Into.(type) {
	case *string:
		*into = text
	case *[]string:
		*into = append(*into, text)
	case *bool:
		if text != "true" && text != "false" {
			return errors.New("want true or false")
		}
		*into = text == "true"
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("want a number")
		}
		*into = n
	case *tenant.Bytes:
		if into.UnmarshalText([]byte(text)) != nil {
			return errors.New("want an amount of bytes such as 4096, 64Ki, 4Gi or 10M")
		}
	}
	return nil
}

// List reports whether the setting has any number of values.
func (s *Setting) List() bool { _, is := s.Into.(*[]string); return is }

// Values are the values as the file has them; none: the default.
func (s *Setting) Values() []string {
	switch into := s.Into.(type) {
	case *string:
		if *into != "" {
			return []string{*into}
		}
	case *[]string:
		return slices.Clone(*into)
	case *bool:
		return []string{strconv.FormatBool(*into)}
	case *int:
		if *into != 0 {
			return []string{strconv.Itoa(*into)}
		}
	case *tenant.Bytes:
		if *into != 0 {
			return []string{into.String()}
		}
	}
	return nil
}

// orList joins words: a, b or c.
func orList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func checkMode(text string) error {
	if _, err := strconv.ParseUint(text, 8, 9); err != nil {
		return errors.New("want octal permissions such as 0600")
	}
	return nil
}

func checkAddress(text string) error {
	if _, err := netip.ParseAddr(text); err != nil {
		return errors.New("want an IP address")
	}
	return nil
}

func checkPort(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 || n > 65535 {
		return errors.New("want a port between 1 and 65535")
	}
	return nil
}

func checkHostPort(text string) error {
	if text == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return errors.New("want HOST:PORT or :PORT")
	}
	return nil
}
