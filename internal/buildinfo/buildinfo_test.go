package buildinfo

import (
	"bytes"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	installed := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}}}
	for _, c := range []struct {
		name                  string
		linked                [3]string
		build                 *debug.BuildInfo
		version, commit, date string
	}{
		{"nothing", [3]string{}, nil, Unknown, "", ""},
		{"go build", [3]string{}, &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, Unknown, "", ""},
		{"go install", [3]string{}, installed, "v1.2.3", "abc", "2026-01-02T03:04:05Z"},
		{"make", [3]string{"v2", "def", "today"}, installed, "v2", "def", "today"},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := read(c.linked[0], c.linked[1], c.linked[2], c.build)
			if i.Version != c.version || i.Commit != c.commit || i.Date != c.date || i.Go != runtime.Version() {
				t.Errorf("got %+v, want %s, %s, %s", i, c.version, c.commit, c.date)
			}
		})
	}
}

func TestPrint(t *testing.T) {
	i := Info{Version: "v1", Commit: "abc", Date: "d", Go: "go1", Platform: "linux/arm64", Objects: "o/v1",
		Protocols: []Protocol{{"programs", 3, 2}, {"hosts", 1, 0}}}
	var text, data bytes.Buffer
	if err := i.Print(&text, "vrdma", false); err != nil {
		t.Fatal(err)
	}
	want := `vrdma              v1
commit             abc
date               d
go                 go1
platform           linux/arm64
objects            o/v1
protocol programs  3 (oldest accepted: 2)
protocol hosts     1
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	if err := i.Print(&data, "vrdma", true); err != nil {
		t.Fatal(err)
	}
	var back Info
	if err := json.Unmarshal(data.Bytes(), &back); err != nil || back.Protocols[0] != i.Protocols[0] || !strings.Contains(data.String(), `"commit": "abc"`) {
		t.Errorf("got %s, %v", data.String(), err)
	}
}
