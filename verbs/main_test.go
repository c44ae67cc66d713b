package verbs_test

import (
	"os"
	"testing"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
)

func TestMain(m *testing.M) { os.Exit(testdaemon.Tests(m)) }
