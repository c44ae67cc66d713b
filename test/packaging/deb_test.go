package packaging

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// build makes packages of these parts for this architecture, as version, in dir. In the short form it takes the shared objects
// of make build, which are not stripped, because compiling them takes longer than the rest.
func build(t *testing.T, dir, version, parts, kinds string) {
	t.Helper()
	harness.Need(t, "make", "gcc", "gzip")
	harness.Build(t)
	to := filepath.Join(dir, "build/amd64")
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, library := range harness.Pick([]string{harness.Library(), harness.SocketsLibrary()}, nil) {
		text, err := os.ReadFile(library)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(library)), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("make", "-s", "package-amd64", "DIST="+dir, "VERSION="+version, "PARTS="+parts, "KINDS="+kinds)
	cmd.Dir = harness.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// find returns the only file that matches.
func find(t *testing.T, pattern string) string {
	t.Helper()
	found, _ := filepath.Glob(pattern)
	if len(found) != 1 {
		t.Fatalf("%s: found %v, want one file", pattern, found)
	}
	return found[0]
}

// TestDeb: the .deb installs in a clean Debian, programs there use the device, an upgrade keeps configuration and the running
// daemon, and purge leaves nothing. The .rpm has the same files. Long form: Debian 13 and testing, too.
func TestDeb(t *testing.T) {
	packages := harness.Directory(t, nil)
	build(t, packages+"/old", "v1.0.0", "vrdma", "deb")
	build(t, packages+"/new", "v1.1.0", "vrdma guest kube", "deb rpm")
	for _, suite := range harness.Pick([]string{"bookworm"}, []string{"bookworm", "trixie", "testing"}) {
		t.Run(suite, func(t *testing.T) { life(t, newMachine(t, suite, packages)) })
	}
	t.Run("guest", func(t *testing.T) { agent(t, newMachine(t, "bookworm", packages)) })
	t.Run("kube", func(t *testing.T) { kube(t, newMachine(t, "bookworm", packages)) })
	t.Run("systemd", func(t *testing.T) { scripts(t, newMachine(t, "bookworm", packages)) })
	t.Run("ci", func(t *testing.T) { recipe(t, packages, newMachine(t, "bookworm", packages)) })
	t.Run("rpm", func(t *testing.T) { unpacked(t, packages, newMachine(t, "bookworm", packages)) })
}

// life is a package's: installed, used, upgraded, removed, purged.
func life(t *testing.T, m *machine) {
	clean := m.files(t)
	if out := m.run(t, "apt-get", "install", "-y", "/packages/old/vrdma_1.0.0-1_amd64.deb"); !strings.Contains(out, "vrdma run -- ibv_devinfo") {
		t.Errorf("the installation does not say what to do next:\n%s", out)
	}
	if out := m.run(t, "vrdma", "version"); !strings.Contains(out, "v1.0.0") {
		t.Errorf("vrdma version: %s", out)
	}
	for _, name := range []string{"/usr/share/man/man1/vrdma-run.1.gz", "/usr/share/bash-completion/completions/vrdma",
		"/usr/share/zsh/vendor-completions/_vrdma", "/usr/share/doc/vrdma/examples/two-tenants.yaml", "/usr/share/doc/vrdma/copyright"} {
		if !m.exists(name) {
			t.Errorf("there is no %s", name)
		}
	}
	criuPlugin(t, m)
	unit, err := os.ReadFile(m.path("/usr/lib/systemd/system/vrdma.service"))
	if err != nil || !strings.Contains(string(unit), "ExecStart=") || strings.Contains(string(unit), "/usr/local") {
		t.Errorf("the unit does not start what is installed: %v\n%s", err, unit)
	}
	daemon := m.serve(t)
	m.writes(t)
	beside(t, m)

	// The operator's change and the running daemon survive the upgrade.
	config := m.path("/etc/vrdma/vrdma.yaml")
	text, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, append(text, "# changed here\n"...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, "apt-get", "install", "-y", "/packages/new/vrdma_1.1.0-1_amd64.deb")
	if text, err := os.ReadFile(config); err != nil || !strings.Contains(string(text), "# changed here") {
		t.Errorf("the upgrade replaced the configuration: %v\n%s", err, text)
	}
	if out := m.run(t, "vrdma", "version"); !strings.Contains(out, "v1.1.0") {
		t.Errorf("vrdma version after the upgrade: %s", out)
	}
	if v := m.status(t).Version; v != "v1.0.0" {
		t.Errorf("after the upgrade %s serves, want the daemon that ran before", v)
	}
	m.writes(t)
	m.run(t, "vrdma", "stop")
	daemon.OK(t, minute)
	daemon = m.serve(t)
	if v := m.status(t).Version; v != "v1.1.0" {
		t.Errorf("after a restart %s serves, want v1.1.0", v)
	}

	// Removing it stops the daemon and keeps state; purge removes that, too.
	m.run(t, "dpkg", "--remove", "vrdma")
	daemon.OK(t, minute)
	if m.exists("/usr/bin/vrdma") || !m.exists("/etc/vrdma/vrdma.yaml") {
		t.Error("after remove the program is left, or the configuration is gone")
	}
	m.run(t, "dpkg", "--purge", "vrdma")
	m.nothingLeft(t, clean)
}

// criuPlugin: the plugin is where CRIU looks, and defines what CRIU looks up.
func criuPlugin(t *testing.T, m *machine) {
	t.Helper()
	f, err := elf.Open(m.path("/usr/lib/criu/vrdma_plugin.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == "CR_PLUGIN_DESC" && s.Section != elf.SHN_UNDEF }) {
		t.Errorf("the plugin does not define CR_PLUGIN_DESC: %v", symbols)
	}
}

// beside: programs under vrdma run see vrdma's device only, others only that of the machine.
func beside(t *testing.T, m *machine) {
	t.Helper()
	const list = "/sys/class/infiniband"
	if out := m.run(t, "ls", list); strings.TrimSpace(out) != "mlx5_0" {
		t.Errorf("the machine has the devices %q, want mlx5_0", out)
	}
	if out := m.run(t, "vrdma", "run", "--", "ls", list); strings.TrimSpace(out) != "rxe0" {
		t.Errorf("under vrdma run there are the devices %q, want rxe0", out)
	}
	if out := m.run(t, "vrdma", "run", "--", "ibv_devices"); !strings.Contains(out, "rxe0") || strings.Contains(out, "mlx5_0") {
		t.Errorf("ibv_devices under vrdma run: %s", out)
	}
}

// agent installs the guest's package where no systemd is.
func agent(t *testing.T, m *machine) {
	clean := m.files(t)
	out := m.run(t, "apt-get", "install", "-y", "/packages/new/vrdma_1.1.0-1_amd64.deb", "/packages/new/vrdma-guest_1.1.0-1_amd64.deb")
	if !strings.Contains(out, "start 'vrdma guest agent'") {
		t.Errorf("the installation does not say how to start the agent:\n%s", out)
	}
	unit, err := os.ReadFile(m.path("/usr/lib/systemd/system/vrdma-agent.service"))
	if err != nil || !strings.Contains(string(unit), "ExecStart=/usr/bin/vrdma guest agent") {
		t.Errorf("the agent's unit: %v\n%s", err, unit)
	}
	m.run(t, "dpkg", "--purge", "vrdma-guest", "vrdma")
	m.nothingLeft(t, clean)
}

// kube installs the package for nodes of Kubernetes beside vrdma's, and removes it first.
func kube(t *testing.T, m *machine) {
	clean := m.files(t)
	m.run(t, "apt-get", "install", "-y", "/packages/new/vrdma_1.1.0-1_amd64.deb")
	without := m.files(t)
	m.run(t, "dpkg", "--install", "/packages/new/vrdma-kube_1.1.0-1_amd64.deb")
	if out := m.run(t, "vrdma-kube", "version"); !strings.Contains(out, "v1.1.0") {
		t.Errorf("vrdma-kube version: %s", out)
	}
	for _, name := range []string{"/usr/share/man/man1/vrdma-kube.1.gz", "/usr/share/bash-completion/completions/vrdma-kube",
		"/usr/share/zsh/vendor-completions/_vrdma-kube", "/usr/share/doc/vrdma-kube/kubernetes/kustomization.yaml",
		"/usr/share/doc/vrdma-kube/kubernetes-dra/kustomization.yaml", "/usr/share/doc/vrdma-kube/copyright"} {
		if !m.exists(name) {
			t.Errorf("there is no %s", name)
		}
	}
	m.run(t, "dpkg", "--purge", "vrdma-kube")
	m.nothingLeft(t, without)
	m.run(t, "dpkg", "--purge", "vrdma")
	m.nothingLeft(t, clean)
}

// scripts shows what the maintainer scripts ask of systemd, by a systemctl that writes it down. Units of vrdma are active.
func scripts(t *testing.T, m *machine) {
	log := m.path("/systemctl.log")
	asked := func() string {
		text, _ := os.ReadFile(log) // none was asked
		os.Remove(log)
		return strings.ReplaceAll(string(text), "\n", "; ")
	}
	if err := os.MkdirAll(m.path("/run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path("/usr/bin/systemctl"), []byte("#!/bin/sh\necho \"$@\" >>/systemctl.log\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.run(t, "apt-get", "install", "-y", "/packages/old/vrdma_1.0.0-1_amd64.deb")
	if got := asked(); strings.Contains(got, "start") || strings.Contains(got, "enable") || !strings.Contains(got, "daemon-reload") {
		t.Errorf("installing asked systemd for %q, want daemon-reload and no start", got)
	}
	if out := m.run(t, "apt-get", "install", "-y", "/packages/new/vrdma_1.1.0-1_amd64.deb"); !strings.Contains(out, "systemctl reload vrdma") {
		t.Errorf("the upgrade does not say that the previous daemon serves:\n%s", out)
	}
	if got := asked(); strings.Contains(got, "restart") || strings.Contains(got, "stop") || strings.Contains(got, "disable") {
		t.Errorf("upgrading asked systemd for %q: programs lose their device", got)
	}
	m.run(t, "apt-get", "install", "-y", "/packages/new/vrdma-guest_1.1.0-1_amd64.deb")
	if got := asked(); !strings.Contains(got, "enable vrdma-agent.service") {
		t.Errorf("the guest's package asked systemd for %q, want enable", got)
	}
	m.run(t, "dpkg", "--purge", "vrdma-guest", "vrdma")
	if got := asked(); !strings.Contains(got, "--now disable vrdma.service") || !strings.Contains(got, "--now disable vrdma-agent.service") {
		t.Errorf("removing asked systemd for %q, want disable --now of both units", got)
	}
}

// recipe runs the step of docs/how-to/ci.md that other projects have instead of modprobe rdma_rxe.
func recipe(t *testing.T, packages string, m *machine) {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "contrib/ci/install"))
	if err == nil {
		err = os.WriteFile(filepath.Join(packages, "ci-install"), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	const deb = "PACKAGE=/packages/new/vrdma_1.1.0-1_amd64.deb"
	if p := m.start(t, "env", deb, "SHA256="+strings.Repeat("0", 64), "/packages/ci-install"); p.Wait(t, minute) == 0 {
		t.Errorf("a package with another checksum is installed:\n%s", p.Output())
	}
	if out := m.run(t, "env", deb, "/packages/ci-install"); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("the step does not show the device:\n%s", out)
	}
	if p := m.start(t, "vrdma", "run", "--", "sh", "-c", "ibv_devices && exit 7"); p.Wait(t, minute) != 7 || !strings.Contains(p.Output(), "rxe0") {
		t.Errorf("vrdma run exits with %d, want that of the tests, 7:\n%s", p.Code(), p.Output())
	}
}

// unpacked is the .rpm in a root, by rpm2cpio.
func unpacked(t *testing.T, packages string, m *machine) {
	harness.Need(t, "rpm2cpio", "cpio")
	rpm := find(t, packages+"/new/vrdma-1.1.0-1.x86_64.rpm")
	// The archive has absolute paths, with which cpio would write to this machine.
	root := filepath.Join(packages, "rpm")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	unpack := exec.Command("sh", "-c", `rpm2cpio "$1" | cpio -idm --quiet --no-absolute-filenames -D "$2" && dpkg-deb -x "$3" "$2.deb" &&
		mv "$2.deb/usr/share/zsh/vendor-completions" "$2.deb/usr/share/zsh/site-functions" && diff -r "$2.deb" "$2" && cp -a "$2/." "$4/"`,
		"sh", rpm, root, packages+"/new/vrdma_1.1.0-1_amd64.deb", m.root)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("rpm2cpio, and comparing with the .deb: %v\n%s", err, out)
	}
	criuPlugin(t, m)
	m.serve(t)
	m.writes(t)
	m.run(t, "vrdma", "stop")
}
