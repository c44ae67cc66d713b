package verbs

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// Attributes are the capabilities and limits of a device.
type Attributes struct {
	NodeGUID         uint64
	MaxMRSize        uint64
	MaxQPs           int
	MaxQPRequests    int // capacity of one queue
	MaxSGE           int
	MaxCQs           int
	MaxCQEntries     int
	MaxMRs           int
	MaxPDs           int
	MaxReads         int // outstanding reads and atomics of one queue pair
	MaxMWs           int
	MaxGroups        int // multicast groups
	MaxAHs           int
	MaxSRQs          int
	MaxSRQRequests   int
	MaxSRQSGE        int
	Atomics          bool
	PhysicalPorts    int
	CompletionVector int
}

// Query returns the capabilities and limits of the device.
func (d *Device) Query() (Attributes, error) {
	var r abi.QueryDeviceResp
	if _, err := exec(d, abi.CmdQueryDevice, &abi.QueryDevice{Response: d.response()}, nil, decode(&r)); err != nil {
		return Attributes{}, fault("query the device", err)
	}
	return Attributes{
		NodeGUID: r.NodeGUID, MaxMRSize: r.MaxMRSize, MaxQPs: int(r.MaxQP), MaxQPRequests: int(r.MaxQPWR), MaxSGE: int(r.MaxSGE),
		MaxCQs: int(r.MaxCQ), MaxCQEntries: int(r.MaxCQE), MaxMRs: int(r.MaxMR), MaxPDs: int(r.MaxPD), MaxReads: int(r.MaxQPRDAtom),
		MaxMWs: int(r.MaxMW), MaxGroups: int(r.MaxMcastGroup), MaxAHs: int(r.MaxAH), MaxSRQs: int(r.MaxSRQ),
		MaxSRQRequests: int(r.MaxSRQWR), MaxSRQSGE: int(r.MaxSRQSGE), Atomics: r.AtomicCap != 0, PhysicalPorts: int(r.PhysPortCnt),
	}, nil
}

// Port is the state of the device's only port.
type Port struct {
	Active     bool
	MTU        MTU // the active MTU
	MaxMTU     MTU
	MaxMessage uint32
	GIDs       int // length of the GID table
}

// portNumber is the number of the only port.
const portNumber = 1

// Port returns the state of the port.
func (d *Device) Port() (Port, error) {
	var r abi.QueryPortResp
	if _, err := exec(d, abi.CmdQueryPort, &abi.QueryPort{Response: d.response(), PortNum: portNumber}, nil, decode(&r)); err != nil {
		return Port{}, fault("query the port", err)
	}
	return Port{
		Active: r.State == abi.PortActive, MTU: mtuOf(r.ActiveMTU), MaxMTU: mtuOf(r.MaxMTU), MaxMessage: r.MaxMsgSz, GIDs: int(r.GIDTblLen),
	}, nil
}

// An Entry is one of the port's addresses. If the GID table has a GID for RoCEv1 and RoCEv2, only the
// RoCEv2 entry is listed.
type Entry struct {
	Index int
	GID   GID
}

// GIDs returns the port's addresses. Addresses that other hosts can reach come first, IPv4 before IPv6.
func (d *Device) GIDs() ([]Entry, error) {
	dir := filepath.Join(d.backend.Tree(), "class/infiniband", d.name, "ports", strconv.Itoa(portNumber))
	list, err := os.ReadDir(filepath.Join(dir, "gids"))
	if err != nil {
		return nil, fault("read the port's addresses", err)
	}
	var out []Entry
	for _, f := range list {
		i, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		a, err := netip.ParseAddr(ipc.ReadLine(filepath.Join(dir, "gids", f.Name())))
		if err != nil || a.IsUnspecified() {
			continue
		}
		if kind := ipc.ReadLine(filepath.Join(dir, "gid_attrs/types", f.Name())); kind != "" && kind != "RoCE v2" {
			continue
		}
		out = append(out, Entry{i, GIDOf(a)})
	}
	if len(out) == 0 {
		return nil, fault("read the port's addresses", fmt.Errorf("%s has no GID: check that the NIC has an address", d.name))
	}
	sortEntries(out)
	return out, nil
}

// sortEntries puts the addresses that other hosts can reach first, IPv4 before IPv6.
func sortEntries(list []Entry) {
	rank := func(g GID) int {
		switch a := g.Addr(); {
		case a.IsLoopback():
			return 3
		case a.IsLinkLocalUnicast():
			return 2
		case !a.Is4():
			return 1
		}
		return 0
	}
	for i := 1; i < len(list); i++ {
		for k := i; k > 0; k-- {
			a, b := rank(list[k-1].GID), rank(list[k].GID)
			if a < b || a == b && list[k-1].Index < list[k].Index {
				break
			}
			list[k-1], list[k] = list[k], list[k-1]
		}
	}
}

// entry returns the entry of a GID. An invalid GID selects the first entry.
func (d *Device) entry(g GID) (Entry, error) {
	list, err := d.GIDs()
	if err != nil {
		return Entry{}, err
	}
	if g == (GID{}) {
		return list[0], nil
	}
	for _, e := range list {
		if e.GID == g {
			return e, nil
		}
	}
	return Entry{}, fault("find an address", fmt.Errorf("%v is not an address of %s: it has %v", g, d.name, list))
}
