package service

import (
	"strconv"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// limit bounds every wait. It is no measurement.
const limit = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

func itoa(n int) string { return strconv.Itoa(n) }
