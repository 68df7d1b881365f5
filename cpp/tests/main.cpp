// Runs the tests; `powerinfer_tests -tc="Attention*"` those of a name, `--help` says what else.
#define DOCTEST_CONFIG_IMPLEMENT
// The handlers of sanitizers say more about a crash.
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <doctest/doctest.h>

#include <iostream>

#include "kernels/kernel_table.h"

namespace {

unsigned num_selected = 0;

/// Counts the tests that the filters let through.
struct SelectionListener : doctest::IReporter {
  explicit SelectionListener(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    num_selected = stats.numTestCasesPassingFilters;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

}  // namespace

REGISTER_LISTENER("selection", 1, SelectionListener);

int main(int argc, char** argv) {
  std::cout << "kernels:";
  for (const auto* table : powerinfer::AvailableKernels()) std::cout << ' ' << table->name;
  std::cout << std::endl;
  doctest::Context context(argc, argv);
  const int result = context.run();
  if (context.shouldExit() || result != 0 || num_selected > 0) return result;
  std::cout << "no test has such a name" << std::endl;
  return 1;
}
