package preflight

import (
	"path/filepath"
	"slices"
	"strings"
)

// launchers start programs without the caller's environment: LD_PRELOAD and VRDMA_SOCKET are lost. The value is the
// command line with vrdma behind them.
var launchers = map[string]string{
	"sudo":        "sudo vrdma run -- PROGRAM",
	"su":          "su -c 'vrdma run -- PROGRAM' USER",
	"runuser":     "runuser -u USER -- vrdma run -- PROGRAM",
	"doas":        "doas vrdma run -- PROGRAM",
	"pkexec":      "pkexec vrdma run -- PROGRAM",
	"ssh":         "ssh HOST vrdma run -- PROGRAM",
	"at":          "vrdma run -- PROGRAM in the job",
	"batch":       "vrdma run -- PROGRAM in the job",
	"crontab":     "vrdma run -- PROGRAM in the line",
	"systemd-run": "systemd-run vrdma run -- PROGRAM",
	"tmux":        "vrdma run -- PROGRAM in the window: its server keeps the environment that it was started in",
	"screen":      "vrdma run -- PROGRAM in the window: its server keeps the environment that it was started in",
}

// sandboxes give programs another /tmp and drop LD_PRELOAD, and vrdma run does not change their command lines as it does bwrap's. The
// value is what gives a program in them the device.
var sandboxes = map[string]string{
	"flatpak": "show it the directory of VRDMA_SOCKET with --filesystem=, set VRDMA_SOCKET, SYSFS_PATH and LD_PRELOAD with --env=, and have rdma-core in its runtime",
}

// behind returns the remedy for a program that starts others without the caller's environment.
func behind(path string) (do string, found bool) {
	how, found := launchers[filepath.Base(path)]
	return "start vrdma behind it: " + how, found
}

// Environment finds programs in a command line that drop the environment.
func Environment(args []string) []Finding {
	if len(args) == 0 {
		return nil
	}
	if do, found := behind(args[0]); found {
		return []Finding{{What: args[0] + " starts programs in another environment: they do not see the device", Do: do}}
	}
	if do, found := sandboxes[filepath.Base(args[0])]; found {
		return []Finding{{What: args[0] + " starts programs with another /tmp and other variables: they do not see the device", Do: do}}
	}
	if filepath.Base(args[0]) != "env" {
		return nil
	}
	options := args[1:]
	if i := slices.IndexFunc(options, func(s string) bool { return !strings.HasPrefix(s, "-") }); i >= 0 {
		options = options[:i]
	}
	if slices.ContainsFunc(options, func(s string) bool {
		return s == "-" || s == "--ignore-environment" || strings.HasPrefix(s, "-i")
	}) {
		return []Finding{{What: "env -i drops the environment: programs behind it do not see the device", Do: "start vrdma behind it: env -i PATH=\"$PATH\" vrdma run -- PROGRAM"}}
	}
	return nil
}
