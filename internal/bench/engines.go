package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// An engine starts containers that wait. Programs are run in their namespaces from outside, so that the kernel says what each of them took.
type engine struct {
	name string
	// there reports whether it can be used here; nil: its program is enough.
	there func(ctx context.Context, l *Lab) bool
	// start starts a container of this name, with the mounts that vrdma nic args prints.
	start func(ctx context.Context, in *Instrument, id, mounts string) error
	// pid prints the process whose namespaces are the container's, and remove removes it.
	pid, remove func(l *Lab, id string) []string
	program     string
}

// engines are those that are known; the first that is there is taken, unless the user names another.
var engines = []engine{
	{
		name: "podman", program: "podman",
		start: func(ctx context.Context, in *Instrument, id, mounts string) error {
			argv := append([]string{"podman", "run", "--detach", "--rm", "--name", id, "--network", "none"}, strings.Fields(mounts)...)
			_, err := in.Lab.Run(ctx, append(argv, "--rootfs", in.root(), "sleep", "infinity")...)
			return err
		},
		pid: func(_ *Lab, id string) []string {
			return []string{"podman", "inspect", "--format", "{{.State.Pid}}", id}
		},
		remove: func(_ *Lab, id string) []string { return []string{"podman", "rm", "--force", "--time", "0", id} },
	},
	{
		name: "docker", program: "docker",
		there: func(ctx context.Context, l *Lab) bool { // its client alone is nothing
			_, err := l.Run(ctx, "docker", "version", "--format", "{{.Server.Version}}")
			return err == nil
		},
		start: startDocker,
		pid: func(_ *Lab, id string) []string {
			return []string{"docker", "inspect", "--format", "{{.State.Pid}}", id}
		},
		remove: func(_ *Lab, id string) []string { return []string{"docker", "rm", "--force", id} },
	},
	{
		name: "lxc", program: "lxc-execute",
		start: startLXC,
		pid:   func(l *Lab, id string) []string { return []string{"lxc-info", "-P", l.Dir, "-n", id, "-p", "-H"} },
		remove: func(l *Lab, id string) []string {
			return []string{"lxc-stop", "-P", l.Dir, "-n", id, "-k"}
		},
	},
}

// NoEngine is an engine's name for network namespaces instead of containers.
const NoEngine = "none"

// EngineNames are what a user may choose.
func EngineNames() (names []string) {
	for _, e := range engines {
		names = append(names, e.name)
	}
	return append(names, NoEngine)
}

// chosen is the engine that starts containers; nil: there is none, or the user wants none.
func (in *Instrument) chosen(ctx context.Context) (*engine, error) {
	if in.Engine == NoEngine {
		return nil, nil
	}
	for i := range engines {
		e := &engines[i]
		if in.Engine != "" && in.Engine != e.name {
			continue
		}
		_, err := exec.LookPath(e.program)
		if err == nil && (e.there == nil || e.there(ctx, in.Lab)) {
			return e, nil
		}
		if in.Engine != "" {
			return nil, fmt.Errorf("%s cannot be used here: vrdma doctor says what to do; or --engine %s", in.Engine, NoEngine)
		}
	}
	if in.Engine != "" {
		return nil, fmt.Errorf("%s is no engine that is known: choose among %s", in.Engine, strings.Join(EngineNames(), ", "))
	}
	return nil, nil
}

// container starts a container with a NIC of tenant bench at a host's daemon.
func (in *Instrument) container(ctx context.Context, e *engine, base *Host, i int, name string) (*box, error) {
	l := in.Lab
	mounts, err := l.Run(ctx, l.Vrdma, "nic", "args", "bench/"+name, "--socket", base.Socket, "-o", e.name)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("vrdma-bench-%d-%s-%s", os.Getpid(), filepath.Base(base.Socket), name)
	b := &box{close: func() { l.Run(context.WithoutCancel(ctx), e.remove(l, id)...) }} // it is gone, or never was
	if err := e.start(ctx, in, id, mounts); err != nil {
		b.close() // the engine may have been ended when the container was there already
		return nil, fmt.Errorf("no container: %w; give another root with --rootfs", err)
	}
	out, err := l.Run(ctx, e.pid(l, id)...)
	if err == nil {
		_, err = fmt.Sscan(out, &b.pid)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	at := fmt.Sprint(b.pid)
	b.net = []string{"nsenter", "--target", at, "--net", "--"}
	enter := []string{"nsenter", "--target", at, "--mount", "--net", "--pid", "--ipc", "--uts", "--root", "--wd", "--"}
	b.host = &Host{lab: l, Socket: base.Socket + ".nics/bench/" + name + "/nic/vrdma.sock", IP: fmt.Sprintf("10.98.0.%d", i+1), enter: enter, pid: b.pid, box: id}
	return b, nil
}

// dockerImage is one with this machine's directories and settings, but not its programs, which are mounted: Docker has no root
// directories of other people's.
const dockerImage = "vrdma-bench:host"

const dockerImport = `cd / && tar --create --ignore-failed-read --no-recursion dev proc sys tmp run root var usr bin sbin lib lib64 etc $(find etc -maxdepth 2 \
	\( -name passwd -o -name group -o -name nsswitch.conf -o -name 'ld.so.c*' -o -path 'etc/libibverbs.d*' -o -path 'etc/openmpi*' -o -path 'etc/ld.so.conf.d*' -o -path 'etc/alternatives/*' \)) |
	docker import - "$0"`

// startDocker starts a container of the image that --rootfs names, or of one with this machine's programs.
func startDocker(ctx context.Context, in *Instrument, id, mounts string) error {
	argv := append([]string{"docker", "run", "--detach", "--rm", "--name", id, "--network", "none", "--user", "0"}, strings.Fields(mounts)...)
	image := in.Rootfs
	if image == "" {
		image = dockerImage
		argv = append(argv, "--volume", "/usr:/usr:ro")
		if _, err := in.Lab.Run(ctx, "sh", "-c", dockerImport, image); err != nil {
			return err
		}
	}
	_, err := in.Lab.Run(ctx, append(argv, image, "sleep", "infinity")...)
	return err
}

// startLXC starts a container whose root is the directory that --rootfs names.
func startLXC(ctx context.Context, in *Instrument, id, mounts string) error {
	if in.Rootfs == "" {
		return fmt.Errorf("LXC makes mount points in a container's root directory, so it is not given this machine's")
	}
	file := filepath.Join(in.Lab.Dir, id+".conf")
	text := fmt.Sprintf("lxc.rootfs.path = dir:%s\nlxc.net.0.type = empty\nlxc.uts.name = %s\nlxc.mount.auto = proc:mixed sys:ro\n%s", in.Rootfs, id, mounts)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := in.Lab.Run(ctx, "lxc-execute", "-P", in.Lab.Dir, "-n", id, "-f", file, "--daemon", "--", "sleep", "infinity")
	return err
}
