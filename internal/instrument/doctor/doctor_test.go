package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every check is complete and returns an outcome on this machine.
func TestHere(t *testing.T) {
	seen := make(map[string]bool)
	checks := All()
	for _, p := range checks {
		if seen[p.group+p.name] {
			t.Errorf("there are two checks %s: %s", p.group, p.name)
		}
		seen[p.group+p.name] = true
		if len(p.needs)+len(p.helps) == 0 && p.name != "netem" { // no suite has a link with a delay
			t.Errorf("nothing needs %s", p.name)
		}
		for _, e := range slices.Concat(p.needs, p.helps) {
			if !slices.Contains(Experiments, e) {
				t.Errorf("%s is for %q, which is no experiment", p.name, e)
			}
		}
	}
	for i, f := range Examine(Here(), checks, "") {
		if f.Name != checks[i].name || f.Found == "" || !slices.Contains([]Outcome{Yes, No, Unknown}, f.Outcome) {
			t.Errorf("%s: %+v", checks[i].name, f)
		}
		if f.Outcome == No && f.Do == "" {
			t.Errorf("%s is not there, and nothing is said of what to do", f.Name)
		}
		t.Logf("%-16s %-18s %-8s %s", f.Group, f.Name, f.Outcome, f.Found)
	}
}

// TestList: all groups have their checks.
func TestList(t *testing.T) {
	want := map[string]string{
		groupVerbs:      "rdma-core, memory lock, namespaces",
		groupNetwork:    "port 4791, MTU, UDP GSO, UDP GRO, ECN, rmem, tbf, netem",
		groupProcessors: "count, SMT, governor, steal, distance",
		groupHardware:   "devices, GIDs, SR-IOV, namespace mode, rdma cgroup, macvlan, ipvlan, OVS, tc offload",
		groupMachines:   "KVM, IOMMU, hugepages, QEMU, libvirt, vhost-user",
		groupContainers: "podman, docker, containerd, CDI, CNI, rootless",
		groupTools:      "perftest, qperf, sockperf, iperf3, NetPIPE over TCP, NetPIPE over MPI, Open MPI, cmtime, fio",
	}
	for group, names := range want {
		for name := range strings.SplitSeq(names, ", ") {
			if !slices.ContainsFunc(All(), func(p Check) bool { return p.group == group && p.name == name }) {
				t.Errorf("no check %s of %s", name, group)
			}
		}
	}
}

// fake is a machine with these files and programs.
func fake(t *testing.T, files map[string]string, programs map[string]string) *Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Machine{
		Root: root,
		Find: func(name string) bool { _, ok := programs[name]; return ok },
		Run: func(_ bool, name string, _ ...string) (string, error) {
			if out, ok := programs[name]; ok && !strings.HasPrefix(out, "!") {
				return out, nil
			}
			return strings.TrimPrefix(programs[name], "!"), errors.New("exit status 1")
		},
	}
}

func TestProbes(t *testing.T) {
	none := fake(t, nil, nil)
	nic := fake(t, map[string]string{
		"sys/class/infiniband/mlx5_0/ports/1/state":         "4: ACTIVE",
		"sys/class/infiniband/mlx5_0/ports/1/link_layer":    "Ethernet",
		"sys/class/infiniband/mlx5_0/ports/1/rate":          "100 Gb/sec (4X EDR)",
		"sys/class/infiniband/mlx5_0/ports/1/gids/0":        "fe80:0000:0000:0000:0000:0000:0000:0001",
		"sys/class/infiniband/mlx5_0/ports/1/gids/1":        "0000:0000:0000:0000:0000:0000:0000:0000",
		"sys/class/infiniband/mlx5_0/device/sriov_totalvfs": "8",
		"sys/class/infiniband/mlx5_0/device/sriov_numvfs":   "2",
		"proc/cgroups":               "#subsys_name\nrdma 1 1 1",
		"proc/stat":                  "cpu  1 0 0 0",
		"proc/sys/net/core/rmem_max": "212992",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":  "powersave",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512",
		"usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0":      "",
		"sys/module/rdma_rxe/initstate":                         "live",
		"opt/cni/bin/bridge":                                    "",
	}, map[string]string{
		"rdma": "netns exclusive copy-on-fork on", "podman": "podman version 4.3.1", "sh": "!Error: Unknown device type.",
		"NPtcp": "", "qemu-system-x86_64": "Available netdev backend types:\nvhost-user\n",
	})
	tests := []struct {
		name    string
		look    func(*Machine) (Outcome, string)
		m       *Machine
		outcome Outcome
		found   string
	}{
		{"no devices", devices, none, No, "none"},
		{"devices", devices, nic, Yes, "mlx5_0/1 Ethernet ACTIVE 100 Gb/sec (4X EDR)"},
		{"GIDs", gids, nic, Yes, "1"},
		{"no GIDs", gids, none, No, "none"},
		{"SR-IOV", sriov, nic, Yes, "mlx5_0 2 of 8 functions"},
		{"no SR-IOV", sriov, none, No, "no device has it"},
		{"exclusive", netnsMode, nic, Yes, "exclusive"},
		{"shared", netnsMode, fake(t, nil, map[string]string{"rdma": "netns shared"}), No, "shared"},
		{"no rdma", netnsMode, none, Unknown, "the kernel has no RDMA subsystem"},
		{"cgroup", rdmaCgroup, nic, Yes, "there"},
		{"cgroup v2", rdmaCgroup, fake(t, map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu rdma"}, nil), Yes, "there"},
		{"no cgroup", rdmaCgroup, none, No, "the kernel has none"},
		{"docker", docker, fake(t, nil, map[string]string{"docker": "28.5.2"}), Yes, "28.5.2"},
		{"docker without a server", docker, fake(t, nil, map[string]string{"docker": "!Cannot connect to the Docker daemon"}), No, "its server does not answer"},
		{"no docker", docker, none, No, "not installed"},
		{"rxe", rxe, nic, Yes, "loaded"},
		{"no rxe", rxe, none, No, "no such module"},
		{"a short /proc/stat", steal, nic, Unknown, "begins with"},
		{"no /proc/stat", steal, none, Unknown, "no such file"},
		{"small rmem", rmem, nic, No, "208 KiB"},
		{"governor", governor, nic, No, "powersave"},
		{"hugepages", hugepages, nic, Yes, "512 of 2048kB"},
		{"no hugepages", hugepages, none, No, "none reserved"},
		{"rdma-core", rdmaCore, nic, Yes, "version 50"},
		{"no rdma-core", rdmaCore, none, No, "not installed"},
		{"no KVM", kvm, none, No, "no /dev/kvm"},
		{"vhost-user", vhostUser, nic, Yes, "in QEMU"},
		{"QEMU does not say", vhostUser, none, Unknown, "does not say"},
		{"CNI", cni, nic, Yes, "/opt/cni/bin"},
		{"no CNI", cni, none, No, "no plugins"},
		{"rootless", rootless, none, No, "newuidmap"},
		{"a version", program("podman", "--version"), nic, Yes, "4.3.1"},
		{"no version", program("NPtcp"), nic, Yes, "installed"},
		{"no program", program("podman", "--version"), none, No, "not installed"},
		{"what is tried and fails", tries("ip link add m0 type macvlan"), nic, No, "Error: Unknown device type."},
		{"what cannot be tried", tries("ip link"), fake(t, nil, map[string]string{"sh": "!sh: 1: ip: not found"}), Unknown, "not found"},
	}
	for _, test := range tests {
		outcome, found := test.look(test.m)
		if outcome != test.outcome || !strings.Contains(found, test.found) {
			t.Errorf("%s: %s, %q; want %s, %q", test.name, outcome, found, test.outcome, test.found)
		}
	}
}

func TestSelect(t *testing.T) {
	if _, err := Select(All(), "thesys"); err == nil || !strings.Contains(err.Error(), "choose one of quick") {
		t.Errorf("a set that is not: %v", err)
	}
	lab, err := Select(All(), "lab")
	if err != nil || len(lab) == 0 || len(lab) == len(All()) {
		t.Fatalf("lab has %d of %d checks: %v", len(lab), len(All()), err)
	}
	missing := Missing(Examine(fake(t, nil, nil), lab, "lab"))
	var names []string
	for _, f := range missing {
		names = append(names, f.Name)
	}
	if !slices.Contains(names, "perftest") || !slices.Contains(names, "rdma-core") || slices.Contains(names, "governor") {
		t.Errorf("missing for the lab: %v", names)
	}
}
