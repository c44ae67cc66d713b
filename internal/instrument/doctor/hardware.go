package doctor

import (
	"fmt"
	"path/filepath"
	"strings"
)

const groupHardware = "hardware RDMA"

// Suites of which parts need hardware: the report cites the published values.
var cited = []string{"thesis", "slides"}

const noHardware = "no RDMA hardware here: its rows are cited, not measured"

var hardware = []Check{
	{group: groupHardware, name: "devices", helps: cited, do: noHardware, look: devices},
	{group: groupHardware, name: "GIDs", helps: cited, do: noHardware, look: gids},
	{group: groupHardware, name: "SR-IOV", helps: cited, do: noHardware, look: sriov},
	{group: groupHardware, name: "namespace mode", helps: cited, do: "rdma system set netns exclusive, for one namespace a device", look: netnsMode},
	{group: groupHardware, name: "rdma cgroup", helps: cited, do: "a kernel with CONFIG_CGROUP_RDMA, for limits of hardware's objects", look: rdmaCgroup},
	{group: groupHardware, name: "kernel's rxe", helps: cited, do: "modprobe rdma_rxe; without it SoftRoCE is measured in a guest", look: rxe},
	{group: groupHardware, name: "macvlan", helps: cited, do: "modprobe macvlan", look: tries("ip link add v0 type veth peer name v1; ip link add m0 link v0 type macvlan")},
	{group: groupHardware, name: "ipvlan", helps: cited, do: "modprobe ipvlan", look: tries("ip link add v0 type veth peer name v1; ip link add m0 link v0 type ipvlan")},
	{group: groupHardware, name: "OVS", helps: []string{"slides", "mikelangelo"}, do: "apt-get install openvswitch-switch", look: program("ovs-vswitchd", "--version")},
	{group: groupHardware, name: "tc offload", helps: []string{"slides"}, do: noHardware, look: offload},
}

// devices lists RDMA devices with their ports.
func devices(m *Machine) (Outcome, string) {
	var texts []string
	for _, d := range m.glob("sys/class/infiniband/*") {
		name := filepath.Base(d)
		for _, p := range m.glob("sys/class/infiniband/" + name + "/ports/*") {
			port := filepath.Base(p)
			state, _ := m.read("sys/class/infiniband/" + name + "/ports/" + port + "/state")
			layer, _ := m.read("sys/class/infiniband/" + name + "/ports/" + port + "/link_layer")
			rate, _ := m.read("sys/class/infiniband/" + name + "/ports/" + port + "/rate")
			texts = append(texts, strings.Join(strings.Fields(fmt.Sprintf("%s/%s %s %s %s", name, port, layer, strings.TrimLeft(state, "0123456789: "), rate)), " "))
		}
	}
	if len(texts) == 0 {
		return No, "none"
	}
	return Yes, strings.Join(texts, ", ")
}

// gids counts the GIDs that are set.
func gids(m *Machine) (Outcome, string) {
	n := 0
	for _, path := range m.glob("sys/class/infiniband/*/ports/*/gids/*") {
		rel, err := filepath.Rel(m.Root, path)
		if err != nil {
			continue
		}
		if text, err := m.read(rel); err == nil && strings.Trim(text, "0:") != "" {
			n++
		}
	}
	if n == 0 {
		return No, "none"
	}
	return Yes, fmt.Sprint(n)
}

func sriov(m *Machine) (Outcome, string) {
	var texts []string
	for _, d := range m.glob("sys/class/infiniband/*") {
		name := filepath.Base(d)
		total, err := m.read("sys/class/infiniband/" + name + "/device/sriov_totalvfs")
		if err != nil {
			continue
		}
		now, _ := m.read("sys/class/infiniband/" + name + "/device/sriov_numvfs")
		texts = append(texts, fmt.Sprintf("%s %s of %s functions", name, now, total))
	}
	if len(texts) == 0 {
		return No, "no device has it"
	}
	return Yes, strings.Join(texts, ", ")
}

func netnsMode(m *Machine) (Outcome, string) {
	out, err := m.Run(false, "rdma", "system", "show")
	text := strings.TrimSpace(out)
	switch {
	case err != nil || text == "":
		return Unknown, "the kernel has no RDMA subsystem loaded, or rdma (iproute2) is not installed"
	case strings.Contains(text, "exclusive"):
		return Yes, "exclusive"
	}
	return No, "shared"
}

func rdmaCgroup(m *Machine) (Outcome, string) {
	two, _ := m.read("sys/fs/cgroup/cgroup.controllers")
	one, _ := m.read("proc/cgroups")
	for _, word := range strings.Fields(two + "\n" + one) {
		if word == "rdma" {
			return Yes, "there"
		}
	}
	return No, "the kernel has none"
}

func rxe(m *Machine) (Outcome, string) {
	if _, err := m.read("sys/module/rdma_rxe/initstate"); err == nil {
		return Yes, "loaded"
	}
	release, _ := m.read("proc/sys/kernel/osrelease")
	if len(m.glob("lib/modules/"+release+"/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*")) > 0 {
		return Yes, "can be loaded"
	}
	return No, "this kernel has no such module"
}

// offload looks for an interface that offloads tc rules.
func offload(m *Machine) (Outcome, string) {
	for _, path := range m.glob("sys/class/net/*/device/driver") {
		name := filepath.Base(filepath.Dir(filepath.Dir(path)))
		out, err := m.Run(false, "ethtool", "-k", name)
		if err != nil {
			return Unknown, "ethtool is not installed, or failed: " + lastLine(out)
		}
		if strings.Contains(out, "hw-tc-offload: on") || strings.Contains(out, "hw-tc-offload: off\n") {
			return Yes, name
		}
	}
	return No, "no interface has it"
}
