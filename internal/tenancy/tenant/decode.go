package tenant

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A decoder fills an object from the YAML of one document and collects all errors.
type decoder struct {
	file string
	key  Key // of the object, as far as it is known
	errs Errors
}

// mostWrong is the maximum number of errors that are reported for a file. Without it, a hostile file could cause an
// error, and use memory, for each of its bytes.
const mostWrong = 1000

// wrong adds an error about a node.
func (d *decoder) wrong(n *yaml.Node, field, format string, args ...any) {
	if len(d.errs) >= mostWrong {
		return
	}
	if len(d.errs) == mostWrong-1 {
		format, args = "more is wrong, and is not listed", nil
	}
	d.errs = append(d.errs, &Error{File: d.file, Line: n.Line, Key: d.key, Field: field, Text: fmt.Sprintf(format, args...)})
}

// value decodes a node into v, which can be set.
func (d *decoder) value(n *yaml.Node, v reflect.Value, field string) {
	switch {
	case n.Kind == yaml.AliasNode:
		d.wrong(n, field, "*%s is an alias, which is not supported: write the value itself", n.Value)
		return
	case n.Style&yaml.TaggedStyle != 0:
		d.wrong(n, field, "%s is a tag, which is not supported: leave it out", n.Tag)
		return
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		d.wrong(n, field, "has no value: give one, or leave the field out")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch into := v.Addr().Interface().(type) {
	case *Service:
		d.service(n, into, field)
		return
	case encoding.TextUnmarshaler:
		if d.want(n, yaml.ScalarNode, field, "one value") {
			if err := into.UnmarshalText([]byte(n.Value)); err != nil {
				d.wrong(n, field, "%s", plain(err, n.Value, into))
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(n, v, field)
	case reflect.Map:
		d.labels(n, v, field)
	case reflect.Slice:
		d.list(n, v, field)
	case reflect.String:
		d.text(n, v, field)
	case reflect.Int, reflect.Uint32:
		d.number(n, v, field)
	case reflect.Bool:
		d.truth(n, v, field)
	default:
		panic("tenant: no decoder for " + v.Type().String())
	}
}

// plain returns the text of err. It replaces the texts of other packages by ours.
func plain(err error, value string, into any) string {
	switch fmt.Sprintf("%T", into) {
	case "*netip.Addr":
		return fmt.Sprintf("%q is not an IP address: write it like 10.1.0.1 or fd00::1", value)
	case "*netip.Prefix":
		return fmt.Sprintf("%q is not a prefix: write it like 10.1.0.0/24 or fd00::/64", value)
	}
	return err.Error()
}

// want reports whether a node has a kind, and adds an error if not.
func (d *decoder) want(n *yaml.Node, kind yaml.Kind, field, what string) bool {
	if n.Kind == kind {
		return true
	}
	is := map[yaml.Kind]string{yaml.MappingNode: "fields", yaml.SequenceNode: "a list", yaml.ScalarNode: "one value"}[n.Kind]
	if n.Kind == yaml.ScalarNode {
		is = strconv.Quote(n.Value)
	}
	d.wrong(n, field, "is %s: want %s", is, what)
	return false
}

// structure decodes fields, each by its name in JSON.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, field string) {
	names := fieldNames(v.Type())
	if !d.want(n, yaml.MappingNode, field, "fields: "+strings.Join(names, ", ")) {
		return
	}
	d.pairs(n, field, func(key, value *yaml.Node) {
		i := slices.Index(names, key.Value)
		if i < 0 {
			d.unknown(key, field, names)
			return
		}
		d.value(value, v.FieldByIndex(fieldIndex(v.Type(), key.Value)), join(field, key.Value))
	})
}

// unknown adds an error about an unknown field.
func (d *decoder) unknown(key *yaml.Node, field string, names []string) {
	for _, name := range names {
		if strings.EqualFold(name, key.Value) || strings.EqualFold(name+"s", key.Value) || strings.EqualFold(name, key.Value+"s") {
			d.wrong(key, field, "there is no field %q: write %s", key.Value, name)
			return
		}
	}
	d.wrong(key, field, "there is no field %q: the fields here are %s", key.Value, strings.Join(names, ", "))
}

// pairs calls f for the entries of a mapping, for each key once.
func (d *decoder) pairs(n *yaml.Node, field string, f func(key, value *yaml.Node)) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.wrong(key, field, "a field's name is not a word")
			continue
		}
		if line, found := seen[key.Value]; found {
			d.wrong(key, field, "%q is here twice, first in line %d: delete one", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		f(key, value)
	}
}

// service decodes the word manual, or fields.
func (d *decoder) service(n *yaml.Node, s *Service, field string) {
	if n.Kind != yaml.ScalarNode {
		d.value(n, reflect.ValueOf((*serviceFields)(s)).Elem(), field)
		return
	}
	s.Manual = true
	if err := notManual(n.Value); err != nil {
		d.wrong(n, field, "%s", err)
	}
}

func (d *decoder) labels(n *yaml.Node, v reflect.Value, field string) {
	if !d.want(n, yaml.MappingNode, field, "labels like {role: web}") || len(n.Content) == 0 {
		return
	}
	labels := make(map[string]string, len(n.Content)/2)
	d.pairs(n, field, func(key, value *yaml.Node) {
		var text string
		d.value(value, reflect.ValueOf(&text).Elem(), join(field, key.Value))
		labels[key.Value] = text
	})
	v.Set(reflect.ValueOf(labels))
}

// list decodes a list. An empty one is refused, because it can be read as "none" and as "all".
func (d *decoder) list(n *yaml.Node, v reflect.Value, field string) {
	what := "a list"
	if n.Kind == yaml.ScalarNode {
		what = "a list: [" + n.Value + "]"
	}
	if !d.want(n, yaml.SequenceNode, field, what) {
		return
	}
	if len(n.Content) == 0 {
		text := "is an empty list: leave it out"
		if v.Type() == reflect.TypeFor[[]Rule]() {
			text += ", or to refuse everything write deny: [{}]"
		}
		d.wrong(n, field, "%s", text)
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, entry := range n.Content {
		d.value(entry, list.Index(i), fmt.Sprintf("%s[%d]", field, i))
	}
	v.Set(list)
}

func (d *decoder) text(n *yaml.Node, v reflect.Value, field string) {
	if !d.want(n, yaml.ScalarNode, field, "text") {
		return
	}
	if n.Tag != "!!str" {
		d.wrong(n, field, "%s is not text for YAML: write %q, in quotes", n.Value, n.Value)
		return
	}
	v.SetString(n.Value)
}

func (d *decoder) truth(n *yaml.Node, v reflect.Value, field string) {
	if !d.want(n, yaml.ScalarNode, field, "true or false") {
		return
	}
	if n.Tag != "!!bool" {
		d.wrong(n, field, "%q is neither true nor false: write one of them", n.Value)
		return
	}
	v.SetBool(strings.EqualFold(n.Value, "true"))
}

func (d *decoder) number(n *yaml.Node, v reflect.Value, field string) {
	if !d.want(n, yaml.ScalarNode, field, "a number") {
		return
	}
	largest := 63
	if v.Kind() == reflect.Uint32 {
		largest = 32
	}
	value, err := strconv.ParseUint(n.Value, 10, largest)
	switch {
	case err != nil || n.Tag != "!!int":
		d.wrong(n, field, "%q is not a whole number from 0 to %d: write one without unit or quotes", n.Value, uint64(1)<<largest-1)
	case v.CanInt():
		v.SetInt(int64(value))
	default:
		v.SetUint(value)
	}
}

// fieldNames are the names in JSON of a struct's exported fields.
func fieldNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if name := jsonName(t.Field(i)); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func fieldIndex(t reflect.Type, name string) []int {
	for i := range t.NumField() {
		if jsonName(t.Field(i)) == name {
			return []int{i}
		}
	}
	return nil
}

// jsonName is empty for a field that is not written.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "-" {
		return ""
	}
	return name
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}
