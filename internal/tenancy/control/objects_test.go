package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The daemon's errors name file and line, although it has never seen the file.
func TestErrorsHaveLines(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	mustApply(t, op, file(twoAdministrators))
	bad := nicFile("red", "a")[0].Text + "---\n" + nicFile("red", "b")[0].Text
	for text, want := range map[string]string{
		strings.Replace(bad, "network: train", "network: none", 1):          "test.yaml:4: NIC red/a: spec.network",
		strings.Replace(bad, "spec:", "spek:", 1):                           "test.yaml:4: NIC red/a: there is no field",
		bad + "---\n" + nicFile("red", "a")[0].Text:                         "test.yaml:11: NIC red/a: is given twice, first at test.yaml:1",
		strings.Replace(bad, "network: train", "network: train, vni: 1", 1): "test.yaml:4",
	} {
		_, err := Apply(op, file(text), false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
		if _, err := TestPolicy(op, PolicyQuestion{From: "red/a", To: "red/b"}, file(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("policy test: %v\nwant %s", err, want)
		}
	}
	// Every problem has its line; the error says how many were left out.
	text := ""
	for i := range 300 {
		text += "---\n" + strings.Replace(nicFile("red", fmt.Sprint("n", i))[0].Text, "network: train", "network: none", 1)
	}
	_, err := Apply(op, file(text), false)
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) != 201 || !strings.HasPrefix(e.Problems[199], "test.yaml:") || e.Problems[200] != "and 100 more" {
		t.Errorf("300 problems: %v", err)
	}
}

// hostile is a request of about size bytes whose spec repeats something.
func hostile(kind, before, repeated, after string, size int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"op":"apply","objects":[{"apiVersion":"vrdma.io/v1","kind":"%s","metadata":{"name":"a","tenant":"red"},"spec":{%s`, kind, before)
	for b.Len()+2*len(repeated)+len(after)+4 < size {
		b.WriteString(repeated + ",")
	}
	b.WriteString(repeated + after + "}}]}")
	return []byte(b.String())
}

// worst are requests that take the most memory for their size.
func worst(size int) map[string][]byte {
	pad := strings.Repeat(" ", braceSize-3)
	return map[string][]byte{
		"rules":        hostile("Policy", `"deny":[`, "{}", "]", size),
		"padded rules": hostile("Policy", `"deny":[`, "{}"+pad, "]", size),
		"ports":        hostile("Policy", `"deny":[{"service":{"ports":[`, "1", "]}}]", size),
		"wide ports":   hostile("Policy", `"deny":[{"service":{"ports":[`, "111", "]}}]", size),
		"services":     hostile("Policy", `"deny":[`, `{"service":"manual"}`, "]", size),
		"labels":       hostile("Policy", `"deny":[`, `{"peer":{"labels":{"a":"b"}}}`, "]", size),
		"names":        hostile("Policy", `"nics":{"names":[`, `""`, "]}", size),
		"prefixes":     hostile("Network", `"subnets":[`, `""`, "]", size),
		"numbers":      hostile("NIC", `"open":{"uids":[`, `1`, "]}", size),
		"nothing":      []byte(`{"op":"apply","objects":[` + strings.Repeat("{},", size/3-16) + "{}]}"),
		"lists":        []byte(`{"op":"apply","objects":` + strings.Repeat("[", size/2-16) + strings.Repeat("]", size/2-16) + "}"),
	}
}

// Reading a request takes a bounded multiple of its size in memory, whatever it contains.
func TestObjectsMemory(t *testing.T) {
	const size = 1 << 20
	for name, text := range worst(size) {
		if len(text) > size {
			t.Fatalf("%s has %d bytes", name, len(text))
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var r Request
		err := json.Unmarshal(text, &r)
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		runtime.GC()
		runtime.ReadMemStats(&after)
		live := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s: allocated %.1f MiB in all, %.1f MiB stay; %.100v", name, float64(allocated)/size, float64(live)/size, err)
		if allocated > 128*size || live > parsed*size {
			t.Errorf("%s: %d bytes take %d, of which %d stay", name, len(text), allocated, live)
		}
		runtime.KeepAlive(r)
	}
}

// Requests that only a hand-written client sends.
func TestHostileObjects(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	mustApply(t, op, file(twoAdministrators))
	before := worldText(t, h.plane.World())
	for text, want := range map[string]string{
		`{"op":"apply","objects":{}}`:                                          "want a list",
		`{"op":"apply","objects":[null]}`:                                      "objects[0]",
		`{"op":"apply","objects":[{"apiVersion":"vrdma.io/v2","kind":"NIC"}]}`: "vrdma.io/v2",
		`{"op":"apply","objects":[{"apiVersion":"vrdma.io/v1","kind":"Dog"}]}`: "Dog",
		`{"op":"apply","objects":[{"apiVersion":"vrdma.io/v1","kind":"NIC"}]}`: "metadata.name",
		`{"op":"apply","objects":[{"apiVersion":"vrdma.io/v1","kind":"NIC","metadata":{"name":"a","tenant":"red"},"spec":{"network":"train","later":1}}]}`:                     "later",
		`{"op":"apply","objects":[{"apiVersion":"vrdma.io/v1","kind":"Tenant","metadata":{"name":"a"},"spec":{"weight":-1}}]}`:                                                 "weight",
		`{"op":"apply","objects":[{"apiVersion":"vrdma.io/v1","kind":"Tenant","metadata":{"name":"a"}},{"apiVersion":"vrdma.io/v1","kind":"Tenant","metadata":{"name":"a"}}]}`: "twice",
		string(worst(1 << 16)["rules"]): "too many",
	} {
		s, err := protocol.DialObjects(op)
		if err != nil {
			t.Fatal(err)
		}
		var r Reply
		if err = s.SendJSON(json.RawMessage(text)); err == nil {
			err = s.ReceiveJSON(&r)
		}
		s.Close()
		if err != nil || r.Error == nil || !strings.Contains(r.Error.Error(), want) {
			t.Errorf("%.200s: %v, %v; want %q", text, err, r.Error, want)
		}
	}
	if worldText(t, h.plane.World()) != before {
		t.Error("something was changed")
	}
}

func FuzzObjects(f *testing.F) {
	for _, text := range worst(4096) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r Request
		if json.Unmarshal(text, &r) != nil {
			return
		}
		if _, err := json.Marshal(r.Objects); err != nil {
			t.Skip() // what no file can contain
		}
		(&tenant.World{}).Next(tenant.Change{Put: r.Objects}, nil)
	})
}

func BenchmarkWorstObjects(b *testing.B) {
	for name, text := range worst(1 << 20) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var r Request
				json.Unmarshal(text, &r)
			}
		})
	}
}
