package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/docs"
)

func TestReadConfig(t *testing.T) {
	tests := []struct{ name, text, fails string }{
		{"complete", "socket: /run/s\naddr: [10.0.0.5]\nlimits: {qps: 10, memory: 4096}\n", ""},
		{"memory with a unit", "limits: {memory: 1Gi}\n", ""},
		{"empty", "", ""},
		{"comments", "# nothing\n", ""},
		{"names without values", "store:\nlimits:\n", ""},
		{"mode in octal", "mode: 0666\n", ""},
		{"one address", "addr: 10.0.0.5\n", ""},
		{"all groups", "log: {level: warn, format: json}\nmetrics: {address: ':9479', perNIC: true}\noverlay: {port: 1, tunnelPort: 2, tunnelKey: /k}\n", ""},
		{"an unknown field", "mode: '0600'\nsokcet: /run/s\n", `c.yaml:2: unknown field "sokcet": choose among addr, audit, cdi,`},
		{"an unknown field of a group", "limits:\n  pds: 1\n  qpairs: 2\n", `c.yaml:3: unknown field "limits.qpairs": choose among ahs, channels, cqs, memory, mrs, mws, pds, qps, srqs`},
		{"no number", "limits:\n  qps: many\n", `c.yaml:2: limits.qps is "many": want a number`},
		{"no truth", "network: perhaps\n", `c.yaml:1: network is "perhaps": want true or false`},
		{"no choice", "log:\n  level: loud\n", `c.yaml:2: log.level is "loud": choose debug, info, warn or error`},
		{"no address", "addr: [10.0.0.1, there]\n", `c.yaml:1: addr is "there": want an IP address`},
		{"no port", "overlay: {port: 70000}\n", `overlay.port is "70000": want a port between 1 and 65535`},
		{"no place for metrics", "metrics: {address: here}\n", `metrics.address is "here": want HOST:PORT or :PORT`},
		{"no mode", "mode: rw\n", `mode is "rw": want octal permissions such as 0600`},
		{"no group", "log: debug\n", `c.yaml:1: log is "debug": want format, level`},
		{"a group", "store: {file: x}\n", `c.yaml:1: store is a group of fields: want one value`},
		{"a list", "store: [x]\n", `store is a list: want one value`},
		{"an alias", "store: &a x\nusage: *a\n", `c.yaml:2: usage is an alias`},
		{"twice", "store: a\nstore: b\n", `c.yaml:2: store is in line 1, too`},
		{"a list as file", "- a\n", `c.yaml:1: the file is a list: want`},
		{"no YAML", "a: b: c\n", `c.yaml:1: mapping values are not allowed`},
		{"two documents", "store: a\n---\nstore: b\n", `several documents`},
		{"negative", "limits:\n  qps: -1\n", "c.yaml:2: limits.qps is -1"},
		{"more than there are handles", "limits: {qps: 65537}\n", "limits.qps is 65537: an opened device can have at most 65536"},
		{"as many as there are handles", "limits: {qps: 65536, mrs: 1048576}\n", ""},
		{"more regions than handles", "limits: {mrs: 1048577}\n", "limits.mrs is 1048577"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := CheckConfig(path)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("got %v, want %q", err, test.fails)
			}
			if err != nil && strings.Contains(err.Error(), "daemon.") {
				t.Errorf("a Go type is in %v", err)
			}
		})
	}
}

// TestAllMistakes: every mistake of a file is reported at once.
func TestAllMistakes(t *testing.T) {
	err := NewOptions().parseFile("f", []byte("a: 1\nlog: {level: x}\nb: 2\n"))
	if err == nil || strings.Count(err.Error(), "f:") != 2 {
		t.Errorf("got %v, want two unknown fields", err)
	}
}

// TestFlagsOverride: a given flag keeps its value.
func TestFlagsOverride(t *testing.T) {
	o := NewOptions()
	o.LogLevel, o.Addr = "debug", []string{"10.0.0.1"}
	o.Given = func(flag string) bool { return flag == "log-level" || flag == "addr" }
	if err := o.parseFile("f", []byte("log: {level: error, format: json}\naddr: [10.0.0.9]\n")); err != nil {
		t.Fatal(err)
	}
	if o.LogLevel != "debug" || o.LogFormat != "json" || !slices.Equal(o.Addr, []string{"10.0.0.1"}) {
		t.Errorf("got %+v", o)
	}
}

// TestSettings: every setting has a name in the file, and names are unique.
func TestSettings(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range NewOptions().Settings() {
		if s.Key == "" || s.Help == "" || seen[s.Key] || s.Flag != "" && seen["--"+s.Flag] {
			t.Errorf("%+v", s)
		}
		seen[s.Key], seen["--"+s.Flag] = true, s.Flag != ""
	}
}

func TestDifference(t *testing.T) {
	a, b := NewOptions(), NewOptions()
	b.LogLevel, b.Store, b.Metrics = "debug", "/s", ":1"
	changed, fixed := difference(a, b)
	if len(changed) != 2 || len(fixed) != 1 || fixed[0] != (change{"store", "the default", "/s"}) {
		t.Errorf("got %+v, %+v", changed, fixed)
	}
}

// FuzzConfig: a file is refused, or what is printed of it is read as the same settings.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{"", "socket: /s\naddr: [10.0.0.5]\n", "limits: {qps: 10, memory: 1Gi}", "log:\n  level: debug\n", "store: 'a: b'\nguest: ['x,y', z]", "a: &b [*b]", "mode: 0666", "usage: \"\\n\""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o := NewOptions()
		if err := o.parseFile("f", text); err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("no position: %v", err)
			}
			return
		}
		again := NewOptions()
		printed := o.PrintConfig()
		if err := again.parseFile("f", []byte(printed)); err != nil {
			t.Fatalf("%v in\n%s", err, printed)
		}
		if changed, fixed := difference(o, again); len(changed)+len(fixed) > 0 {
			t.Fatalf("%+v, %+v in\n%s", changed, fixed, printed)
		}
	})
}

// TestReference: docs/reference/configuration.md and contrib/vrdma.yaml list all settings.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Configuration file

Generated from the settings themselves by ` + "`make docs`" + `: do not edit. [vrdma.yaml](../../contrib/vrdma.yaml) is a file to start with.

` + "`vrdma daemon --config FILE`" + ` reads a YAML file; the service reads ` + "`" + SystemConfig + "`" + `. A flag overrides the file. A field with a dot is
in a group: ` + "`log.level`" + ` is ` + "`level`" + ` below ` + "`log:`" + `. ` + "`vrdma config check FILE`" + ` reports every mistake with its line,
` + "`vrdma config print FILE`" + ` shows all settings. After SIGHUP, ` + "`vrdma reload`" + ` or ` + "`systemctl reload vrdma`" + ` the daemon reads the file
again. It changes what the third column names and logs what needs a restart.

| field | flag | reload | |
|---|---|---|---|
`)
	for _, s := range NewOptions().Settings() {
		flag, reload := "", ""
		if s.Flag != "" {
			flag = "`--" + s.Flag + "`"
		}
		if s.Reload {
			reload = "yes"
		}
		help := s.Help
		if v := s.Values(); len(v) > 0 && v[0] != "false" {
			help += " (default: " + strings.Join(v, ", ") + ")"
		}
		b.WriteString("| `" + s.Key + "` | " + flag + " | " + reload + " | " + strings.ReplaceAll(help, "|", "\\|") + " |\n")
	}
	docs.Check(t, "docs/reference/configuration.md", b.String())
	docs.Check(t, "contrib/vrdma.yaml", "# Settings of the daemon. A line without # changes one. vrdma config check finds mistakes;\n# docs/how-to/operate.md explains how to change a running daemon.\n\n"+NewOptions().PrintConfig())
}
