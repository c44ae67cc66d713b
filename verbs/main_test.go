package verbs_test

import (
	"os"
	"testing"

	"vrdma/internal/testdaemon"
)

func TestMain(m *testing.M) { os.Exit(testdaemon.Tests(m)) }
