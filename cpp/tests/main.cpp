// Runs all tests, or those whose names contain the first argument.
#include <exception>
#include <iostream>
#include <string>

#include "kernels/kernel_table.h"
#include "tests/testing.h"

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  std::cout << "kernels:";
  for (const auto* table : powerinfer::AvailableKernels()) std::cout << ' ' << table->name;
  std::cout << std::endl;
  int num_run = 0;
  int num_failed = 0;
  for (const auto& test : powerinfer::testing::AllTests()) {
    if (test.name.find(wanted) == std::string::npos) continue;
    ++num_run;
    try {
      test.body();
      std::cout << "ok      " << test.name << std::endl;
    } catch (const std::exception& error) {
      ++num_failed;
      std::cout << "FAILED  " << test.name << ": " << error.what() << std::endl;
    }
  }
  std::cout << num_run << " tests, " << num_failed << " failed" << std::endl;
  return num_failed == 0 && num_run > 0 ? 0 : 1;
}
