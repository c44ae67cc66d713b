package tenant

import "go.yaml.in/yaml/v3"

// A source is where an object was read.
type source struct {
	file string
	node *yaml.Node // the object's
}

// Parse reads a file of YAML documents, an object each; JSON is YAML, too. Everything that is
// wrong is reported, as Errors with lines: what the text says that no object has, values of the
// wrong type, words and quantities that mean nothing. Whether the objects agree with each other is
// asked by World.Next.
func Parse(name string, text []byte) ([]Object, error) { panic("not yet") }

// Marshal is an object as one line of JSON, as it is stored and sent.
func Marshal(o Object) ([]byte, error) { panic("not yet") }

// Unmarshal reads what Marshal has written. It passes over fields that it does not know: a later
// version may have written them.
func Unmarshal(text []byte) (Object, error) { panic("not yet") }

// YAML is an object as people write it. Parse reads it.
func YAML(o Object) ([]byte, error) { panic("not yet") }
