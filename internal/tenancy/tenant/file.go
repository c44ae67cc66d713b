package tenant

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads a file of YAML documents, an object each; JSON is YAML, too. It reports all errors, as Errors with lines:
// unknown fields, values of a wrong type, invalid words and quantities. World.Next checks whether the objects fit
// together. A document of kind List has objects as items. Parse ignores the field status, so that the output of vrdma
// get can be applied.
func Parse(name string, text []byte) ([]Object, error) {
	var objects []Object
	var errs Errors
	documents := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var n yaml.Node
		err := documents.Decode(&n)
		if errors.Is(err, io.EOF) {
			return objects, errs.err()
		}
		if err != nil {
			return nil, append(errs, syntaxError(name, err))
		}
		if len(n.Content) == 0 || n.Content[0].Tag == "!!null" { // nothing, or comments
			continue
		}
		some, wrong := decodeDocument(name, n.Content[0])
		objects, errs = append(objects, some...), append(errs, wrong...)
		if len(errs) >= mostWrong {
			return nil, errs
		}
	}
}

// yamlLine matches the line number in errors of the YAML package.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

func syntaxError(file string, err error) *Error {
	e := &Error{File: file, Line: 1, Text: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Text = err.Error()[len(m[0]):]
	}
	e.Text = "this is not YAML: " + e.Text
	return e
}

// kindList is the kind of a document that is several objects.
const kindList = "List"

func decodeDocument(file string, n *yaml.Node) (objects []Object, errs Errors) {
	if scalar(n, "kind") != kindList {
		o, errs := decodeObject(file, n)
		if errs != nil {
			return nil, errs
		}
		return []Object{o}, nil
	}
	items := entry(n, "items")
	if items == nil || items.Kind != yaml.SequenceNode {
		return nil, Errors{{File: file, Line: n.Line, Text: "a List has no items: write them as a list, items: [...]"}}
	}
	for _, item := range items.Content {
		o, wrong := decodeObject(file, item)
		if wrong == nil {
			objects = append(objects, o)
		}
		if errs = append(errs, wrong...); len(errs) >= mostWrong {
			break
		}
	}
	return objects, errs
}

// newObject is an empty object of a kind; nil if there is no such kind.
func newObject(kind Kind) Object {
	switch kind {
	case KindTenant:
		return new(Tenant)
	case KindNetwork:
		return new(Network)
	case KindNIC:
		return new(NIC)
	case KindPolicy:
		return new(Policy)
	case KindHost:
		return new(Host)
	case KindFault:
		return new(Fault)
	}
	return nil
}

func decodeObject(file string, n *yaml.Node) (Object, Errors) {
	d := &decoder{file: file}
	if !d.want(n, yaml.MappingNode, "", "an object: apiVersion, kind, metadata, spec") {
		return nil, d.errs
	}
	kind := entry(n, "kind")
	if kind == nil {
		d.wrong(n, "", "the object has no kind: write kind: Tenant, Network, NIC, Policy, Host or Fault")
		return nil, d.errs
	}
	o := newObject(Kind(kind.Value))
	if o == nil {
		d.wrong(kind, "kind", "%q is not a kind of object: write Tenant, Network, NIC, Policy, Host or Fault", kind.Value)
		return nil, d.errs
	}
	d.key = Key{Kind: Kind(kind.Value)}
	if meta := entry(n, "metadata"); meta != nil {
		d.key.Tenant, d.key.Name = scalar(meta, "tenant"), scalar(meta, "name")
	} else {
		d.wrong(n, "", "the object has no metadata: write metadata: {name: NAME}")
	}
	if entry(n, "apiVersion") == nil {
		d.wrong(n, "", "the object has no apiVersion: write apiVersion: %s", APIVersion)
	}
	names := []string{"apiVersion", "kind", "metadata", "spec"}
	d.pairs(n, "", func(key, value *yaml.Node) {
		switch key.Value {
		case "apiVersion":
			if value.Value != APIVersion {
				d.wrong(value, "apiVersion", "%q is not known: write %s", value.Value, APIVersion)
			}
		case "kind", "status":
		case "metadata":
			d.value(value, reflect.ValueOf(o.Meta()).Elem(), key.Value)
		case "spec":
			d.value(value, reflect.ValueOf(o).Elem().FieldByName("Spec"), key.Value)
		default:
			d.unknown(key, "", names)
		}
	})
	o.Meta().from = source{file, n}
	return o, d.errs
}

// entry is the value of a key in a mapping; nil if there is none.
func entry(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// scalar is the text of a key's value, empty if it is not there or no text.
func scalar(n *yaml.Node, name string) string {
	if v := entry(n, name); v != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

// A source is the file and the position of an object in it.
type source struct {
	file string
	node *yaml.Node // the object's
}

// locate sets the line of an error to that of its field, or of the nearest parent that the file has.
func (s source) locate(e *Error) {
	if s.node == nil {
		return
	}
	e.File, e.Line = s.file, s.node.Line
	n := s.node
	for step := range strings.FieldsFuncSeq(e.Field, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		var next *yaml.Node
		if i, err := strconv.Atoi(step); n.Kind == yaml.SequenceNode && err == nil && i < len(n.Content) {
			next = n.Content[i]
		} else {
			next = entry(n, step)
		}
		if next == nil {
			return
		}
		n, e.Line = next, next.Line
	}
}

// written is how an object is written: with its kind.
type written struct {
	APIVersion string          `json:"apiVersion"`
	Kind       Kind            `json:"kind"`
	Metadata   *Metadata       `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
}

// Marshal returns an object as one line of JSON, as it is stored and sent.
func Marshal(o Object) ([]byte, error) {
	spec, err := json.Marshal(reflect.ValueOf(o).Elem().FieldByName("Spec").Interface())
	if err != nil {
		return nil, err
	}
	return json.Marshal(written{APIVersion, o.Key().Kind, o.Meta(), spec})
}

// Unmarshal reads the output of Marshal. It ignores unknown fields, because a later version may have written them.
func Unmarshal(text []byte) (Object, error) { return unmarshal(text, json.Unmarshal) }

// UnmarshalStrict is Unmarshal for an object of a request. It rejects unknown fields, because they would have no effect.
func UnmarshalStrict(text []byte) (Object, error) {
	return unmarshal(text, func(text []byte, v any) error {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		return d.Decode(v)
	})
}

func unmarshal(text []byte, read func([]byte, any) error) (Object, error) {
	var raw struct {
		APIVersion string          `json:"apiVersion"`
		Kind       Kind            `json:"kind"`
		Metadata   Metadata        `json:"metadata"`
		Spec       json.RawMessage `json:"spec"`
	}
	if err := read(text, &raw); err != nil {
		return nil, err
	}
	if raw.APIVersion != APIVersion {
		return nil, fmt.Errorf("the object's apiVersion is %q: this vrdma knows %s", raw.APIVersion, APIVersion)
	}
	o := newObject(raw.Kind)
	if o == nil {
		return nil, errors.New("the object has no kind")
	}
	*o.Meta() = raw.Metadata
	if len(raw.Spec) > 0 {
		if err := read(raw.Spec, reflect.ValueOf(o).Elem().FieldByName("Spec").Addr().Interface()); err != nil {
			return nil, fmt.Errorf("%s: spec: %w", o.Key(), err)
		}
	}
	return o, nil
}

// YAML returns an object as YAML. Parse reads it.
func YAML(o Object) ([]byte, error) {
	text, err := Marshal(o)
	if err != nil {
		return nil, err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, err
	}
	unstyle(&n)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// unstyle removes the braces and quotes of JSON; the encoder adds quotes where YAML needs them.
func unstyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		unstyle(child)
	}
}
