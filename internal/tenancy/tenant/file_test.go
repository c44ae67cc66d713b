package tenant

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestParseRefuses(t *testing.T) {
	nic := func(spec string) string { return of("NIC", "red/a", spec) }
	for _, c := range []struct {
		name, file string
		want       []string
	}{
		{"unknown field", nic("network: lab, adress: 10.0.0.1"), []string{`f.yaml:5: NIC red/a: spec: there is no field "adress": the fields here are network, address,`}},
		{"another case", nic("Network: lab"), []string{`there is no field "Network": write network`}},
		{"singular", of("Network", "red/a", "subnet: [10.0.0.0/24]"), []string{`there is no field "subnet": write subnets`}},
		{"unknown at the top", "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: red}\nstatus: {a: b}\nspecs: {}\n", []string{`f.yaml:5: Tenant red: there is no field "specs": write spec`}},
		{"several", "apiVersion: vrdma.io/v1\nkind: NIC\nmetadata:\n  name: a\n  tenant: red\n  label: {a: b}\nspec:\n  network: [x]\n  address: 10.1.0.300\n  rate:\n    out: 5\n",
			[]string{
				`f.yaml:6: NIC red/a: metadata: there is no field "label": write labels`, `f.yaml:8: NIC red/a: spec.network: is a list: want text`,
				`f.yaml:9: NIC red/a: spec.address: "10.1.0.300" is not an IP address: write it like`, `f.yaml:11: NIC red/a: spec.rate.out: "5" is not a rate (it has no unit): write bits a second`,
			}},
		{"in the second document", tenant("red", "") + tenant("blue", "wieght: 1"), []string{`f.yaml:10: Tenant blue: spec: there is no field "wieght"`}},
		{"no kind", "apiVersion: vrdma.io/v1\nmetadata: {name: a}\n", []string{"f.yaml:1: the object has no kind: write kind: Tenant"}},
		{"no apiVersion", "kind: Tenant\nmetadata: {name: a}\n", []string{"f.yaml:1: Tenant a: the object has no apiVersion: write apiVersion: vrdma.io/v1"}},
		{"apiVersion", "apiVersion: v2\nkind: Tenant\nmetadata: {name: a}\n", []string{`apiVersion: "v2" is not known: write vrdma.io/v1`}},
		{"kind", "apiVersion: vrdma.io/v1\nkind: Nic\nmetadata: {name: a}\n", []string{`f.yaml:2: kind: "Nic" is not a kind of object: write Tenant, Network, NIC, Policy, Host or Fault`}},
		{"no metadata", "apiVersion: vrdma.io/v1\nkind: Tenant\n", []string{"the object has no metadata"}},
		{"a list", "[a, b]\n", []string{"f.yaml:1: is a list: want an object"}},
		{"a word", "red\n", []string{`f.yaml:1: is "red": want an object`}},
		{"not YAML", "apiVersion: vrdma.io/v1\nkind: {\n", []string{"f.yaml:2: this is not YAML: "}},
		{"a tab", "kind: Tenant\n\tmetadata: {}\n", []string{"this is not YAML: "}},
		{"twice", of("NIC", "red/a", "network: a, network: b"), []string{`spec: "network" is here twice, first in line 5: delete one`}},
		{"alias", "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: &m {name: a}\nspec: *m\n", []string{"spec: *m is an alias"}},
		{"tag", tenant("a", "weight: !!int '3'"), []string{"!!int is a tag"}},
		{"null", tenant("a", "weight: "), []string{"spec.weight: has no value: give one, or leave the field out"}},
		{"number as text", object("Tenant", "name: 12", ""), []string{`metadata.name: 12 is not text for YAML: write "12", in quotes`}},
		{"text as number", tenant("a", "weight: '3'"), []string{`spec.weight: "3" is not a whole number`}},
		{"negative", tenant("a", "weight: -3"), []string{`spec.weight: "-3" is not a whole number from 0`}},
		{"fraction", tenant("a", "weight: 1.5"), []string{`spec.weight: "1.5" is not a whole number`}},
		{"VNI beyond 32 bits", of("Network", "a/b", "vni: 4294967296"), []string{`spec.vni: "4294967296" is not a whole number from 0 to 4294967295`}},
		{"no list", of("Network", "a/b", "subnets: 10.0.0.0/24"), []string{`spec.subnets: is "10.0.0.0/24": want a list: [10.0.0.0/24]`}},
		{"prefix", of("Network", "a/b", "subnets: [10.0.0.0]"), []string{`spec.subnets[0]: "10.0.0.0" is not a prefix: write it like 10.1.0.0/24`}},
		{"word", of("Network", "a/b", "default: Allow"), []string{`spec.default: "Allow" is not allowed here: choose one of allow, deny`}},
		{"bytes", tenant("a", "quota: {memory: 4GB}"), []string{`spec.quota.memory: "4GB" is not an amount of bytes (no unit is called GB): write it like 4096`}},
		{"service", of("Policy", "a/b", "deny: [{service: tcp}]"), []string{`spec.deny[0].service: "tcp" is not a service: write manual, or {space: tcp, ports: [7471]}`}},
		{"port", of("Policy", "a/b", "deny: [{service: {space: tcp, ports: [http]}}]"), []string{`spec.deny[0].service.ports[0]: "http" is not a port`}},
		{"empty allow", of("Policy", "a/b", "allow: []"), []string{"spec.allow: is an empty list: leave it out, or to refuse everything write deny: [{}]"}},
		{"empty list", nic("network: a, types: []"), []string{"spec.types: is an empty list: leave it out"}},
		{"list without items", "kind: List\n", []string{"a List has no items"}},
		{"item", "kind: List\nitems:\n- {kind: NIC}\n", []string{"f.yaml:3: NIC : the object has no metadata", "no apiVersion"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(c.file))
			if err == nil {
				t.Fatal("no error")
			}
			wantLines(t, err.Error(), c.want...)
		})
	}
}

// full has every field.
const full = `# of everything
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red, labels: {site: "12", example.com/a: ""}}
spec:
  weight: 3
  quota: {nics: 10, devices: 11, queuePairs: 12, completionQueues: 13, rings: 64Ki, memory: 1.5Gi, connections: 14, commands: 15, connectionRequests: 16}
  rate: {out: 2.5Gbit, in: 1500kbit, messages: {out: 5, in: 6}, burst: 100k}
  administrators: {uids: [0, 1000], gids: [50]}
  namespaces: [team-a, team-b]
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: n, tenant: red}
spec: {vni: 5, subnets: [10.0.0.0/24, 'fd00::/64'], mtu: 1500, default: deny, way: vxlan, encryption: true}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec:
  network: n
  addresses: [10.0.0.1, 'fd00::1']
  host: h1.example.com
  open: {uids: [1], gids: [2], container: /kubepods/pod1, namespace: /run/netns/a}
  rate: {out: 1Gbit}
  guarantee: 100Mbit
  class: latency
  limits: {pds: 1, cqs: 2, qps: 3, mrs: 4, mws: 5, srqs: 6, ahs: 7, channels: 8, memory: 9Mi}
  types: [rc, uc, ud]
  operations: [send, write, read, atomic]
---
apiVersion: vrdma.io/v1
kind: Policy
metadata: {name: p, tenant: red}
spec:
  nics: {network: n, names: [a], labels: {role: worker}}
  allow:
  - {direction: out, peer: {labels: {role: store}}, service: {space: tcp, ports: [7471, "18000-18999"]}, types: [rc], ops: [send, read]}
  - {direction: in, peer: {prefix: 10.1.0.0/16, nic: a, network: n}, service: manual}
  deny:
  - {}
  - {service: {space: ib, ports: [0x1000, 18446744073709551615]}}
  maxStaleness: 5m
---
apiVersion: vrdma.io/v1
kind: Host
metadata: {name: switch-7.example.com}
spec: {type: linux, addresses: [192.0.2.7, '2001:db8::7'], port: 8472, tunnelPort: 51820, publicKey: AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: b, tenant: red}
spec: {network: n, address: 10.0.0.2, host: switch-7.example.com, mac: '02:56:0a:00:00:02'}
`

// ofDaemons are fields that a file cannot have.
var ofDaemons = map[string]bool{
	"HostSpec.Address": true, "HostSpec.Version": true, "HostSpec.Features": true, "HostSpec.Capacity": true, "HostSpec.SourcePorts": true,
	"Capacity.Processors": true, "Capacity.Memory": true, "Capacity.MTU": true,
}

func TestEveryField(t *testing.T) {
	given := map[string]bool{}
	for _, o := range parse(t, full) {
		fields(given, reflect.ValueOf(o).Elem().FieldByName("Spec"))
		roundTrip(t, o)
	}
	for name, is := range given {
		if !is && name != "NICSpec.Address" && !ofDaemons[name] {
			t.Errorf("the file has no %s: add it", name)
		}
	}
	apply(t, &World{}, full)
}

// fields notes of every field that v consists of whether a value of it was seen.
func fields(given map[string]bool, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			name := v.Type().Name() + "." + f.Name
			given[name] = given[name] || !v.Field(i).IsZero()
			fields(given, v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			fields(given, v.Index(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			fields(given, v.Elem())
		}
	}
}

// roundTrip writes an object in each form and reads it again.
func roundTrip(t testing.TB, o Object) {
	t.Helper()
	text, err := Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Unmarshal(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	same(t, o, back)
	yaml, err := YAML(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range [][]byte{text, yaml} {
		list, err := Parse("again", form)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s\n%v", form, err)
		}
		same(t, o, list[0])
	}
}

func same(t testing.TB, a, b Object) {
	t.Helper()
	from := func(o Object, s source) source {
		before := o.Meta().from
		o.Meta().from = s
		return before
	}
	x, y := from(a, source{}), from(b, source{})
	if !reflect.DeepEqual(a, b) {
		t.Errorf("\n%+v\nbecame\n%+v", a, b)
	}
	from(a, x)
	from(b, y)
}

func TestYAMLReadsWell(t *testing.T) {
	w := apply(t, &World{}, example(t))
	text, err := YAML(w.NIC("red", "slow"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: vrdma.io/v1
kind: NIC
metadata:
  name: slow
  tenant: red
  labels:
    role: batch
spec:
  network: train
  addresses:
    - 10.1.0.3
  rate:
    out: 1Gbit
    in: 1Gbit
`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

func TestUnmarshalIsOfAnotherVersion(t *testing.T) {
	// A field of a later version is ignored; a later apiVersion is not.
	if _, err := Unmarshal([]byte(`{"apiVersion":"vrdma.io/v1","kind":"Tenant","metadata":{"name":"a"},"spec":{"weight":2,"new":{}}}`)); err != nil {
		t.Error(err)
	}
	for _, text := range []string{``, `{}`, `null`, `[]`, `{"apiVersion":"vrdma.io/v2","kind":"Tenant","metadata":{"name":"a"}}`,
		`{"apiVersion":"vrdma.io/v1","kind":"X"}`, `{"apiVersion":"vrdma.io/v1"}`,
		`{"apiVersion":"vrdma.io/v1","kind":"NIC","spec":{"address":"x"}}`, `{"apiVersion":"vrdma.io/v1","kind":"Tenant","spec":{"weight":"3"}}`} {
		if o, err := Unmarshal([]byte(text)); err == nil {
			t.Errorf("%s is %v", text, o)
		}
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "4096": 4096, "64Ki": 64 << 10, "4Gi": 4 << 30, "10M": 10e6, "1.5Gi": 3 << 29, "0.5k": 500, "1.50Ki": 1536, "7Ei": 7 << 60, "9223372036854775807": 1<<63 - 1,
	} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%s is %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "Ki", "-1", "+1", "1.", ".5", "1.5", "1 Ki", "1KiB", "1K", "1e3", "8Ei", "99999999999999999999", "0.0000000000000000001E", "1..5", "0x10", "1_000", "٣"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, b)
		}
	}
	for text, want := range map[string]BitRate{"1Gbit": 1e9, "2.5Gbit": 25e8, "64kbit": 64e3, "1bit": 1, "0bit": 0, "400Gbit": 4e11} {
		var r BitRate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%s is %d, %v", text, r, err)
		}
	}
	for _, text := range []string{"1", "1G", "1Gb", "1GBit", "0.5bit", "1Gbit/s", "99999999Tbit"} {
		var r BitRate
		if err := r.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, r)
		}
	}
	for b, want := range map[Bytes]string{0: "0", 1: "1", 1024: "1Ki", 1000: "1k", 1500: "1500", 3 << 29: "1536Mi"} {
		if b.String() != want {
			t.Errorf("%d is %s, want %s", uint64(b), b, want)
		}
	}
	if got := BitRate(25e8).String(); got != "2500Mbit" {
		t.Error(got)
	}
}

func TestServiceText(t *testing.T) {
	for _, text := range []string{"manual", "tcp", "tcp:7471", "udp:1,5-9", "ib:18446744073709551615"} {
		if s, err := ParseService(text); err != nil || s.String() != text {
			t.Errorf("%s is %v, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "sctp", "tcp:", "tcp:0", "tcp:70000", "tcp:9-8", "manual:7"} {
		if s, err := ParseService(text); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example(f)))
	f.Add([]byte(full))
	f.Add([]byte("kind: List\nitems: [{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: a}}]"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		objects, err := Parse("f", text)
		if err != nil {
			if len(err.Error()) == 0 || !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("error %q", err)
			}
			return
		}
		for _, o := range objects {
			roundTrip(t, o)
		}
		w, _, err := (&World{}).Next(Change{Put: objects}, seeded())
		if err != nil {
			return
		}
		if kept, err := NewWorld(w.Objects("")); err != nil || len(kept.objects) != len(w.objects) {
			t.Errorf("a store could not keep it: %v", err)
		}
	})
}

func FuzzUnmarshal(f *testing.F) {
	for _, o := range parse(f, full) {
		text, err := Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := Unmarshal(text)
		if err != nil {
			return
		}
		again, err := Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Unmarshal(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
		red, err := Parse("f", []byte(full))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = NewWorld(append(red, o))
	})
}

// The number of reported errors of a file is bounded.
func TestErrorsAreBounded(t *testing.T) {
	const head = "apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: a, tenant: red}\nspec: "
	for what, text := range map[string]string{
		"values":    head + "{network: n, open: {uids: [" + strings.Repeat("a,", 5000) + "1]}}",
		"fields":    head + "{" + strings.Repeat("a: ,", 5000) + "}",
		"documents": strings.Repeat("--- a\n", 5000),
		"items":     "kind: List\nitems: [" + strings.Repeat("a,", 5000) + "]",
	} {
		_, err := Parse("f.yaml", []byte(text))
		var errs Errors
		if !errors.As(err, &errs) || len(errs) == 0 || len(errs) > 2*mostWrong {
			t.Errorf("%s: %d errors, want some and at most %d", what, len(errs), 2*mostWrong)
		}
	}
}
