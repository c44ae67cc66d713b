package daemon

import (
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// SystemCDI is the directory in which engines look for CDI files that a program keeps current.
const SystemCDI = "/var/run/cdi"

// Options are what the operator decides. Settings lists them with their names in flags and in the file.
type Options struct {
	// Place is the daemon's socket for one that the user did not name, from the file's "socket" if that is not "".
	Place func(socket string) (launch.Place, error)
	// Version is that of the program.
	Version string

	Config string // a YAML file; flags override it
	// Given reports whether a flag was given, and so overrides the file; nil: none was.
	Given func(flag string) bool

	Socket    string   // of the file
	Addr      []string // the addresses that become GIDs; none: the machine's
	Mode      string   // the socket's permissions, octal
	LogFormat string   // text or json
	LogLevel  string
	Profile   string // the file for a CPU profile; "": none
	Loops     string // the number of loops; "": that of VRDMA_LOOPS, or 1
	// Ephemeral: the daemon ends after the last program.
	Ephemeral bool
	// Takeover: the daemon continues for the one that serves the socket.
	Takeover bool
	// ContainerTakeover: a daemon in another container of this machine may take over from this one.
	ContainerTakeover bool

	Network     bool     // serve other hosts
	Underlay    []string // addresses of virtual networks between hosts
	OverlayPort int
	TunnelPort  int
	TunnelKey   string // the file of this host's private key; "": beside the store
	NoGSO       bool
	NoGRO       bool
	NoRecognise bool // treat other vrdma hosts as any host
	NoDefault   bool // there is no NIC but declared ones

	Store       string // a file, or etcd://…; "": a file of this daemon's own
	StoreConfig string // the file with the credentials for etcd
	HostName    string // "": the machine's
	Usage       string // the file for the usage of tenants; "none": none; "": beside the store
	Audit       string // the file for the audit log; "none": none; "": beside the store
	Metrics     string // HOST:PORT for Prometheus; "": not served
	PerNIC      bool   // metrics have NICs as a label

	CDI    string        // the directory for CDI files; "none": none; "": the system's for the system's daemon
	Hook   string        // the path of vrdma for hooks in CDI files; "none": no hooks; "": this program
	Guests []string      // NICs for virtual machines
	Limits tenant.Limits // of NIC default
}
