// Package buildinfo says which build of vrdma a program is: version, commit and date of the commit, Go, and the versions of the
// protocols that it speaks. `vrdma version` and `vrdma-kube version` print it.
//
// The Makefile passes version, commit and date to the linker, so two builds of one commit are equal. A program that was built
// without the Makefile (go install MODULE@VERSION) has them from Go's build information.
package buildinfo

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"text/tabwriter"
)

// The linker sets these: -X vrdma.dev/vrdma/internal/buildinfo.version=v1.2.3.
var version, commit, date string

// Unknown is the version of a build that nobody named.
const Unknown = "unknown"

// A Protocol is a protocol that the program speaks.
type Protocol struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	// Oldest is the oldest version that the program still accepts; 0 if it accepts only Version.
	Oldest int `json:"oldest,omitempty"`
}

// Info describes a build.
type Info struct {
	Version   string     `json:"version"`
	Commit    string     `json:"commit,omitempty"`
	Date      string     `json:"date,omitempty"` // of the commit, RFC 3339
	Go        string     `json:"go"`
	Platform  string     `json:"platform"`
	Objects   string     `json:"objects,omitempty"` // apiVersion of declared objects
	Protocols []Protocol `json:"protocols,omitempty"`
}

// Read returns the description of the running program, without protocols.
func Read() Info {
	build, _ := debug.ReadBuildInfo()
	return read(version, commit, date, build)
}

// read prefers what the linker set over Go's build information, which is nil if the program has none.
func read(version, commit, date string, build *debug.BuildInfo) Info {
	i := Info{Version: version, Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build != nil {
		if v := build.Main.Version; i.Version == "" && v != "(devel)" {
			i.Version = v
		}
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision" && i.Commit == "":
				i.Commit = s.Value
			case s.Key == "vcs.time" && i.Date == "":
				i.Date = s.Value
			}
		}
	}
	if i.Version == "" {
		i.Version = Unknown
	}
	return i
}

// Print writes the description of a program as text, or as JSON.
func (i Info) Print(w io.Writer, program string, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(i)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\t%s\n", program, i.Version)
	for _, row := range [][2]string{{"commit", i.Commit}, {"date", i.Date}, {"go", i.Go}, {"platform", i.Platform}, {"objects", i.Objects}} {
		if row[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
		}
	}
	for _, p := range i.Protocols {
		fmt.Fprintf(t, "protocol %s\t%d", p.Name, p.Version)
		if p.Oldest != 0 && p.Oldest != p.Version {
			fmt.Fprintf(t, " (oldest accepted: %d)", p.Oldest)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
