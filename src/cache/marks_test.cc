#include "cache/marks.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

struct MarkCase {
  const char* name;
  int64_t n, r, m, stride;
  std::vector<int64_t> turns, checkpoints;
  bool trimmable;
  std::vector<Mark> want;
};

void PrintTo(const MarkCase& c, std::ostream* out) { *out << c.name; }

const MarkCase kMarkCases[] = {
    {"ColdRawPrompt",
     5000,
     0,
     0,
     2048,
     {},
     {},
     false,
     {{2048, kMarkGrid}, {4096, kMarkGrid}, {4984, kMarkNearEnd}, {5000, kMarkEnd}}},
    {"GridAtTheEndIsOneMark",
     4096,
     0,
     0,
     2048,
     {},
     {},
     false,
     {{2048, kMarkGrid}, {4080, kMarkNearEnd}, {4096, kMarkGrid | kMarkEnd}}},
    {"OnlyPositionsBehindTheRestorePoint",
     4200,
     2048,
     2100,
     2048,
     {},
     {},
     false,
     {{4096, kMarkGrid}, {4184, kMarkNearEnd}, {4200, kMarkEnd}}},
    {"NothingToPlanWhenAllIsRestored", 4096, 4096, 4096, 2048, {}, {}, false, {}},
    {"BranchAt64",
     1000,
     100,
     164,
     2048,
     {},
     {},
     false,
     {{164, kMarkBranch}, {984, kMarkNearEnd}, {1000, kMarkEnd}}},
    {"NoBranchAt63", 1000, 100, 163, 2048, {}, {}, false, {{984, kMarkNearEnd}, {1000, kMarkEnd}}},
    {"BranchJustBehindGridIsSkipped",
     3000,
     1000,
     2064,
     2048,
     {},
     {},
     false,
     {{2048, kMarkGrid}, {2984, kMarkNearEnd}, {3000, kMarkEnd}}},
    {"BranchBeforeGridStays",
     3000,
     1000,
     2047,
     2048,
     {},
     {},
     false,
     {{2047, kMarkBranch}, {2048, kMarkGrid}, {2984, kMarkNearEnd}, {3000, kMarkEnd}}},
    {"ShortPromptHasItsEnd", 5, 0, 0, 2048, {}, {}, false, {{5, kMarkEnd}}},
    {"NearEndBehindTheRestorePointBy16IsSkipped",
     132,
     100,
     100,
     2048,
     {},
     {},
     false,
     {{132, kMarkEnd}}},
    {"NearEndBehindTheRestorePointBy17",
     133,
     100,
     100,
     2048,
     {},
     {},
     false,
     {{117, kMarkNearEnd}, {133, kMarkEnd}}},
    {"LastThreeTurns",
     300,
     0,
     0,
     2048,
     {0, 50, 100, 150, 200, 290},
     {},
     false,
     {{150, kMarkTurn}, {200, kMarkTurn}, {290, kMarkTurn}, {300, kMarkEnd}}},
    {"LongTurnsToo",
     2000,
     0,
     0,
     4096,
     {0, 256, 300, 600, 855, 1900, 1950, 1990},
     {},
     false,
     {{256, kMarkTurn},
      {600, kMarkTurn},
      {1900, kMarkTurn},
      {1950, kMarkTurn},
      {1990, kMarkTurn},
      {2000, kMarkEnd}}},
    {"TurnsBeforeTheRestorePointAreKept",
     1000,
     500,
     500,
     2048,
     {100, 300, 500, 700, 980},
     {},
     false,
     {{700, kMarkTurn}, {980, kMarkTurn}, {1000, kMarkEnd}}},
    {"NoNearEndWhereThereAreTurns",
     1000,
     0,
     0,
     2048,
     {600},
     {},
     false,
     {{600, kMarkTurn}, {1000, kMarkEnd}}},
    {"CloseTurnsAreSkipped",
     1000,
     0,
     0,
     2048,
     {600, 610, 617},
     {},
     false,
     {{600, kMarkTurn}, {617, kMarkTurn}, {1000, kMarkEnd}}},
    {"TurnNearAnExistingCheckpointIsSkipped",
     1000,
     0,
     0,
     2048,
     {600, 700, 800},
     {590, 700, 783},
     false,
     {{800, kMarkTurn}, {1000, kMarkEnd}}},
    {"TurnAndGridOfOnePosition",
     130,
     0,
     0,
     64,
     {64, 120},
     {},
     false,
     {{64, kMarkGrid | kMarkTurn}, {120, kMarkTurn}, {128, kMarkGrid}, {130, kMarkEnd}}},
    {"KvOnlyHasItsEndOnly", 5000, 100, 3000, 2048, {600, 700}, {}, true, {{5000, kMarkEnd}}},
};

class PlanMarksTest : public testing::TestWithParam<MarkCase> {};

TEST_P(PlanMarksTest, Plans) {
  const MarkCase& c = GetParam();
  const MarkInputs in{c.n, c.r, c.m, c.stride, c.turns, c.checkpoints, c.trimmable};
  EXPECT_EQ(PlanMarks(in), c.want);
}

INSTANTIATE_TEST_SUITE_P(All, PlanMarksTest, testing::ValuesIn(kMarkCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PlanMarks, TheProposalsExample) {
  MarkInputs in;
  in.prompt_tokens = 32000;
  std::vector<Mark> marks = PlanMarks(in);
  ASSERT_EQ(marks.size(), 17u);
  for (int64_t k = 1; k <= 15; ++k) EXPECT_EQ(marks[k - 1], (Mark{k * 2048, kMarkGrid}));
  in.restore_point = 28672;
  in.matched = 30000;
  const std::vector<Mark> want = {
      {30000, kMarkBranch}, {30720, kMarkGrid}, {31984, kMarkNearEnd}, {32000, kMarkEnd}};
  EXPECT_EQ(PlanMarks(in), want);
}

TEST(FindTurnStarts, FindsEveryHeader) {
  const std::vector<Token> tokens = {9, 1, 2, 7, 1, 3, 9, 9, 1, 2};
  const std::vector<std::vector<Token>> headers = {{1, 2}, {1, 3, 9}, {}};
  EXPECT_EQ(FindTurnStarts(tokens, headers), (std::vector<int64_t>{1, 4, 8}));
  EXPECT_TRUE(FindTurnStarts(tokens, {}).empty());
  EXPECT_TRUE(FindTurnStarts(std::span(tokens).first(2), headers).empty());
}

TEST(GenerationMarks, GridAndFinish) {
  EXPECT_TRUE(IsGenerationGridMark(4096, 2048, false));
  EXPECT_FALSE(IsGenerationGridMark(4095, 2048, false));
  EXPECT_FALSE(IsGenerationGridMark(4096, 2048, true));
  EXPECT_TRUE(WantsFinishMark(100, std::nullopt, false));
  EXPECT_TRUE(WantsFinishMark(100, 83, false));
  EXPECT_FALSE(WantsFinishMark(100, 84, false));
  EXPECT_FALSE(WantsFinishMark(100, 100, false));
  EXPECT_TRUE(WantsFinishMark(100, 84, true));
  EXPECT_FALSE(WantsFinishMark(0, std::nullopt, false));
}

TEST(MarkKindNames, NamesASet) {
  const std::vector<const char*> names = MarkKindNames(kMarkGrid | kMarkNearEnd | kMarkFinish);
  ASSERT_EQ(names.size(), 3u);
  EXPECT_STREQ(names[0], "grid");
  EXPECT_STREQ(names[1], "near-end");
  EXPECT_STREQ(names[2], "finish");
}

}  // namespace
}  // namespace cairn
