package memory

import (
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
