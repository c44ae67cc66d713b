package launch

import (
	"path/filepath"
	"slices"
	"strings"
)

// bwrapOptions has the number of words after each option of bubblewrap 0.11, the newest in 2026.
var bwrapOptions = map[string]int{
	"--args": 1, "--argv0": 1, "--level-prefix": 0, "--unshare-all": 0, "--share-net": 0, "--unshare-user": 0, "--unshare-user-try": 0,
	"--unshare-ipc": 0, "--unshare-pid": 0, "--unshare-net": 0, "--unshare-uts": 0, "--unshare-cgroup": 0, "--unshare-cgroup-try": 0,
	"--userns": 1, "--userns2": 1, "--disable-userns": 0, "--assert-userns-disabled": 0, "--pidns": 1, "--uid": 1, "--gid": 1,
	"--hostname": 1, "--chdir": 1, "--clearenv": 0, "--setenv": 2, "--unsetenv": 1, "--lock-file": 1, "--sync-fd": 1,
	"--bind": 2, "--bind-try": 2, "--dev-bind": 2, "--dev-bind-try": 2, "--ro-bind": 2, "--ro-bind-try": 2, "--bind-fd": 2,
	"--ro-bind-fd": 2, "--remount-ro": 1, "--exec-label": 1, "--file-label": 1, "--proc": 1, "--dev": 1, "--tmpfs": 1,
	"--mqueue": 1, "--dir": 1, "--file": 2, "--bind-data": 2, "--ro-bind-data": 2, "--symlink": 2, "--seccomp": 1,
	"--add-seccomp-fd": 1, "--block-fd": 1, "--userns-block-fd": 1, "--info-fd": 1, "--json-status-fd": 1, "--new-session": 0,
	"--die-with-parent": 0, "--as-pid-1": 0, "--cap-add": 1, "--cap-drop": 1, "--perms": 1, "--size": 1, "--chmod": 2,
	"--overlay-src": 1, "--overlay": 3, "--tmp-overlay": 1, "--ro-overlay": 1,
}

// InSandbox returns a command line of bubblewrap (bwrap) with options that show the device to the program in the sandbox: its
// socket and directory, below /tmp for many users, and the variables of env, which --clearenv drops. They come after the caller's options,
// because a later mount hides an earlier one. Other command lines, and those with unknown options, are returned as they are.
func (p Place) InSandbox(args, env []string) []string {
	at := bwrapCommand(args)
	if at == 0 {
		return args
	}
	words := []string{"--ro-bind", p.Socket, p.Socket, "--ro-bind", p.Dir(), p.Dir()}
	for _, name := range []string{"VRDMA_SOCKET", "SYSFS_PATH", "LD_PRELOAD"} {
		if i := slices.IndexFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") }); i >= 0 {
			words = append(words, "--setenv", name, env[i][len(name)+1:])
		}
	}
	return slices.Insert(slices.Clone(args), at, words...)
}

// bwrapCommand returns the position after the options of bubblewrap, 0 if there is none.
func bwrapCommand(args []string) int {
	if len(args) == 0 || filepath.Base(args[0]) != "bwrap" {
		return 0
	}
	for at := 1; at < len(args); {
		if !strings.HasPrefix(args[at], "--") || args[at] == "--" {
			return at
		}
		n, known := bwrapOptions[args[at]]
		if !known {
			return 0
		}
		at += 1 + n
	}
	return 0
}
