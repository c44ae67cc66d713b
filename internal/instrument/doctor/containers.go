package doctor

import (
	"cmp"
	"os"
	"os/user"
	"strings"

	"golang.org/x/sys/unix"
)

const groupContainers = "containers"

// containerSuites are the suites with containers.
var containerSuites = []string{"thesis", "slides", "progress"}

const noEngine = "without an engine network namespaces stand in, and the report says so"

var containers = []Check{
	{group: groupContainers, name: "podman", helps: containerSuites, do: "apt-get install podman; " + noEngine, look: program("podman", "--version")},
	{group: groupContainers, name: "docker", helps: containerSuites, do: "apt-get install docker.io, start dockerd, and be in group docker; " + noEngine, look: docker},
	{group: groupContainers, name: "containerd", helps: containerSuites, do: "apt-get install containerd; " + noEngine, look: program("containerd", "--version")},
	{group: groupContainers, name: "LXC", helps: []string{"progress"}, do: "apt-get install lxc; " + noEngine, look: program("lxc-execute", "--version")},
	{group: groupContainers, name: "CDI", helps: containerSuites, do: "be root, or give mounts by hand: engines read CDI files of /etc/cdi and /var/run/cdi", look: cdi},
	{group: groupContainers, name: "CNI", helps: []string{"slides"}, do: "apt-get install containernetworking-plugins", look: cni},
	{group: groupContainers, name: "rootless", helps: containerSuites, do: "apt-get install uidmap, and a line for you in /etc/subuid and /etc/subgid", look: rootless},
}

// docker reports whether its server answers. The client alone cannot start containers.
func docker(m *Machine) (Outcome, string) {
	if !m.Find("docker") {
		return No, "not installed"
	}
	out, err := m.Run(false, "docker", "version", "--format", "{{.Server.Version}}")
	if err != nil {
		return No, "its server does not answer"
	}
	return Yes, cmp.Or(number.FindString(out), "installed")
}

// cdi reports whether there are CDI files, or we may make them.
func cdi(m *Machine) (Outcome, string) {
	if n := len(m.glob("etc/cdi/*")) + len(m.glob("run/cdi/*")); n > 0 {
		return Yes, "there are files"
	}
	for _, dir := range []string{"run/cdi", "run"} {
		if unix.Access(m.Root+"/"+dir, unix.W_OK) == nil {
			return Yes, "files can be made"
		}
	}
	return No, "its directories are root's"
}

func cni(m *Machine) (Outcome, string) {
	for _, dir := range []string{"opt/cni/bin", "usr/lib/cni", "usr/libexec/cni"} {
		if len(m.glob(dir+"/bridge")) > 0 {
			return Yes, "plugins in /" + dir
		}
	}
	return No, "no plugins"
}

// rootless reports whether an engine can run without root: subordinate ids, and the programs that map them.
func rootless(m *Machine) (Outcome, string) {
	if len(m.glob("usr/bin/newuidmap")) == 0 {
		return No, "no newuidmap"
	}
	if os.Geteuid() == 0 {
		return Yes, "for users with a line in /etc/subuid"
	}
	u, err := user.Current()
	if err != nil {
		return Unknown, err.Error()
	}
	text, err := m.read("etc/subuid")
	if err != nil {
		return No, "no /etc/subuid"
	}
	for line := range strings.Lines(text) {
		if name, _, _ := strings.Cut(line, ":"); name == u.Username || name == u.Uid {
			return Yes, "you have ids"
		}
	}
	return No, "no ids for " + u.Username
}
