package service

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// limit bounds every wait. It is no measurement.
const limit = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }
