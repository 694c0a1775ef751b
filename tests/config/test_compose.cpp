// YAML files: what is refused in them, where they are found, how defaults lists join them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "helpers.h"
#include "moebius/config/compose.h"
#include "moebius/config/tree.h"

namespace moebius::config::test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

std::string parsed(const std::string& text) {
    return to_json_text(parse_yaml(text, "f.yaml"), "root");
}
std::string refused(const std::string& text) {
    return error_of([&] { parse_yaml(text, "f.yaml"); });
}

TEST(Yaml, ReadsTypesAsWritten) {
    EXPECT_EQ(parsed("a: 1\nb: 'x'\nc: \"2\"\nd: [1, 2e-3]\ne: {f: null, g: ~}\nh:\ni: yes\n"),
              R"({"a":1,"b":"x","c":"2","d":[1,0.002],"e":{"f":null,"g":null},"h":null,"i":"yes"})");
    EXPECT_EQ(parsed(""), "{}");
    EXPECT_EQ(parsed("# nothing\n"), "{}");
    EXPECT_EQ(parsed("a: &x {b: 1}\nc: *x\n"), R"({"a":{"b":1},"c":{"b":1}})");
}

TEST(Yaml, RefusesWhatReadersDifferAbout) {
    EXPECT_EQ(refused("a: 1\nb: 2\na: 3\n"), "f.yaml:3: key a appears twice in one map (first in f.yaml:1)");
    EXPECT_EQ(refused("x:\n  a: 1\n  a: 3\n"),
              "f.yaml:3: key a appears twice in one map (first in f.yaml:2)");
    EXPECT_THAT(refused("x: &a {b: 1}\ny:\n  <<: *a\n"),
                HasSubstr("f.yaml:3: merge keys (<<) are not supported"));
    EXPECT_THAT(refused("a: 1\n---\nb: 2\n"), HasSubstr("2 YAML documents"));
    EXPECT_THAT(refused("- a\n- b\n"), HasSubstr("a configuration is a map of keys, not a list"));
    EXPECT_THAT(refused("hello\n"), HasSubstr("not plain text"));
    EXPECT_THAT(refused("[a, b]: 1\n"), HasSubstr("a key must be a plain name"));
    EXPECT_THAT(refused("a: !!int 3\n"), HasSubstr("is not supported; write the value without a tag"));
}

TEST(Yaml, SyntaxErrorsHaveALine) {
    EXPECT_THAT(refused("a: 1\nb: [1, 2\nc: 3\n"), HasSubstr("not valid YAML"));
    EXPECT_THAT(refused("a: 1\nb: {\n"), HasSubstr("f.yaml:"));
    EXPECT_THAT(refused(std::string("a\0b: 1", 6)), HasSubstr("binary file"));
}

TEST(Yaml, BoundsDepthAndAliases) {
    std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 9; ++i) {
        bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
        for (int j = 0; j < 10; ++j) bomb += std::string(j ? ", " : "") + "*a" + std::to_string(i - 1);
        bomb += "]\n";
    }
    EXPECT_THAT(refused(bomb), HasSubstr("more than 20000 values"));
    EXPECT_THAT(refused("a: " + std::string(50, '[') + std::string(50, ']')),
                HasSubstr("nested more than 32 deep"));
}

TEST(Yaml, FilesThatAreNoConfiguration) {
    const TempDir dir;
    EXPECT_THAT(error_of([&] { load_file(dir.path() / "no.yaml"); }),
                HasSubstr("no such configuration file"));
    EXPECT_THAT(error_of([&] { load_file(dir.path()); }), HasSubstr("is a directory, not a YAML file"));
    const auto large = dir.write("large.yaml", std::string((1 << 20) + 1, '#'));
    EXPECT_THAT(error_of([&] { load_file(large); }), HasSubstr("too large to be a configuration file"));
    // It has no size that could tell.
    EXPECT_THAT(error_of([&] { load_file("/dev/zero"); }), HasSubstr("too large to be a configuration file"));
}

// In a child process as an unprivileged user, because root reads every file. Exit status: 0 refused as it
// should be, 1 the file could be read after all, 2 another or no message.
int read_unprivileged(const std::filesystem::path& file) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 3;
    if (std::ifstream(file).is_open()) return 1;
    try {
        load_file(file);
    } catch (const Error& error) {
        return std::string(error.what()) ==
                       file.string() + ": cannot be read as a configuration file: Permission denied"
                   ? 0
                   : 2;
    }
    return 2;
}

TEST(Yaml, UnreadableFile) {
    const TempDir dir;
    const auto file = dir.write("a.yaml", "seed: 1\n");
    std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
    std::filesystem::permissions(file, std::filesystem::perms::none);
    const pid_t child = fork();
    if (child == 0) _exit(read_unprivileged(file));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

class Compose : public testing::Test {
  protected:
    std::string composed(const std::string& name) {
        files_.clear();
        return to_json_text(compose({.config_name = name, .search_dirs = {dir_.path()}}, files_), "root");
    }
    std::string refused(const std::string& name) {
        return error_of([&] { composed(name); });
    }

    TempDir dir_;
    std::vector<std::filesystem::path> files_;
};

TEST_F(Compose, LaterEntriesWinAndSelfIsLastWithoutAMark) {
    dir_.write("base.yaml", "a: 1\nm: {x: 1, y: 1}\n");
    dir_.write("over.yaml", "a: 2\nm: {y: 2}\n");
    dir_.write("top.yaml", "defaults: [base, over]\nm: {z: 3}\nl: [1]\n");
    EXPECT_EQ(composed("top"), R"({"a":2,"l":[1],"m":{"x":1,"y":2,"z":3}})");
    EXPECT_EQ(composed("top.yaml"), R"({"a":2,"l":[1],"m":{"x":1,"y":2,"z":3}})");
    EXPECT_THAT(files_,
                ElementsAre(dir_.path() / "top.yaml", dir_.path() / "base.yaml", dir_.path() / "over.yaml"));
}

TEST_F(Compose, SelfStandsWhereItIsPut) {
    dir_.write("base.yaml", "a: base\nb: base\n");
    dir_.write("first.yaml", "defaults: [_self_, base]\na: self\nc: self\n");
    dir_.write("last.yaml", "defaults: [base, _self_]\na: self\nc: self\n");
    EXPECT_EQ(composed("first"), R"({"a":"base","b":"base","c":"self"})");
    EXPECT_EQ(composed("last"), R"({"a":"self","b":"base","c":"self"})");
    dir_.write("twice.yaml", "defaults: [_self_, base, _self_]\n");
    EXPECT_THAT(refused("twice"), HasSubstr("twice.yaml:1: _self_ stands 2 times in defaults"));
}

TEST_F(Compose, ListsAreReplacedAndNested) {
    dir_.write("a.yaml", "l: [1, 2]\n");
    dir_.write("b.yaml", "defaults: [a]\nl: [3]\n");
    dir_.write("c.yaml", "defaults: [b]\nk: 1\n");
    EXPECT_EQ(composed("c"), R"({"k":1,"l":[3]})");
}

TEST_F(Compose, GroupsGiveTheKeysBelowTheirName) {
    dir_.write("dataset/ecoli.yaml", "path: e.fa\nstride: 5\n");
    dir_.write("dataset/deep/x.yaml", "path: x.fa\n");
    dir_.write("dataset/global.yaml", "# @package _global_\nseed: 3\n");
    dir_.write("a.yaml", "defaults:\n  - dataset: ecoli\n  - _self_\ndataset: {stride: 6}\n");
    dir_.write("b.yaml", "defaults: [dataset/ecoli]\n");
    dir_.write("c.yaml", "defaults: [dataset/deep/x]\n");
    dir_.write("d.yaml", "defaults: [dataset/global]\n");
    dir_.write("e.yaml", "defaults:\n  - dataset: [ecoli, global]\n  - dataset: null\n");
    EXPECT_EQ(composed("a"), R"({"dataset":{"path":"e.fa","stride":6}})");
    EXPECT_EQ(composed("b"), R"({"dataset":{"path":"e.fa","stride":5}})");
    EXPECT_EQ(composed("c"), R"({"dataset":{"deep":{"path":"x.fa"}}})");
    EXPECT_EQ(composed("d"), R"({"seed":3})");
    EXPECT_EQ(composed("e"), R"({"dataset":{"path":"e.fa","stride":5},"seed":3})");
}

// A name of a hundred thousand parts must not take the stack.
TEST_F(Compose, APackageOfVeryManyPartsIsAnError) {
    std::string package = "a";
    for (int i = 0; i < 100000; ++i) package += ".a";
    const auto file = dir_.write("deep.yaml", "# @package " + package + "\nseed: 3\n");
    EXPECT_EQ(error_of([&] { composed("deep"); }),
              file.string() + ": a package of 100001 parts; there are at most 32");
    dir_.write("good.yaml", "# @package a.b.c\nseed: 3\n");
    EXPECT_EQ(composed("good"), R"({"a":{"b":{"c":{"seed":3}}}})");
}

TEST_F(Compose, NamesInAGroupAreRelativeToIt) {
    dir_.write("dataset/base.yaml", "stride: 1\nbuffer_size: 1\n");
    dir_.write("dataset/ecoli.yaml", "defaults: [base, /common]\nstride: 2\n");
    dir_.write("common.yaml", "seed: 9\n");
    dir_.write("a.yaml", "defaults: [dataset/ecoli]\n");
    EXPECT_EQ(composed("a"), R"({"dataset":{"buffer_size":1,"stride":2},"seed":9})");
}

TEST_F(Compose, OptionalEntriesMayBeAbsent) {
    dir_.write("base.yaml", "a: 1\n");
    dir_.write("a.yaml",
               "defaults:\n  - optional nowhere\n  - optional dataset: nothing\n  - optional base\n");
    EXPECT_EQ(composed("a"), R"({"a":1})");
    dir_.write("b.yaml", "defaults:\n  - bsae\n");
    EXPECT_EQ(refused("b"), (dir_.path() / "b.yaml").string() + ":2: defaults entry bsae: no bsae.yaml in " +
                                dir_.path().string() + "; did you mean base?");
}

TEST_F(Compose, CyclesNameTheChain) {
    dir_.write("a.yaml", "defaults: [b]\n");
    dir_.write("b.yaml", "defaults: [c]\n");
    dir_.write("c.yaml", "defaults: [b]\n");
    const std::string text = refused("a");
    EXPECT_THAT(text, HasSubstr("defaults lists go round in a circle: "));
    EXPECT_THAT(text, HasSubstr("b.yaml → "));
    EXPECT_THAT(text, EndsWith("c.yaml → " + (std::filesystem::canonical(dir_.path()) / "b.yaml").string()));
    EXPECT_THAT(text, Not(HasSubstr("a.yaml")));
    dir_.write("self.yaml", "defaults: [self]\n");
    EXPECT_THAT(refused("self"), HasSubstr("self.yaml → "));
}

TEST_F(Compose, TheSameFileTwiceIsNoCycle) {
    dir_.write("base.yaml", "a: 1\n");
    dir_.write("x.yaml", "defaults: [base]\n");
    dir_.write("y.yaml", "defaults: [base, x]\n");
    EXPECT_EQ(composed("y"), R"({"a":1})");
}

TEST_F(Compose, EntriesThatAreNotSupported) {
    dir_.write("a.yaml", "defaults: [db@other]\n");
    dir_.write("b.yaml", "defaults:\n  - override db: x\n");
    dir_.write("c.yaml", "defaults: base\n");
    dir_.write("d.yaml", "defaults:\n  - db: ???\n");
    dir_.write("e.yaml", "defaults:\n  - {a: b, c: d}\n");
    dir_.write("f.yaml", "defaults:\n  - [a]\n");
    EXPECT_THAT(refused("a"), HasSubstr("a.yaml:1: defaults entry 'db@other' is not supported"));
    EXPECT_THAT(refused("b"), HasSubstr("is not supported"));
    EXPECT_THAT(refused("c"), HasSubstr("defaults = base must be a list of configuration names"));
    EXPECT_THAT(refused("d"), HasSubstr("defaults entry 'db' needs a name"));
    EXPECT_THAT(refused("e"), HasSubstr("must be one 'dir: name'"));
    EXPECT_THAT(refused("f"), HasSubstr("must be a name"));
    dir_.write("g.yaml", "defaults:\nk: 1\n");
    EXPECT_EQ(composed("g"), R"({"k":1})");
}

TEST_F(Compose, TheUsersDirectoryComesFirst) {
    const TempDir user;
    dir_.write("base.yaml", "seed: 1\n");
    dir_.write("same.yaml", "seed: 2\n");
    user.write("same.yaml", "seed: 3\n");
    user.write("mine.yaml", "defaults: [base]\n");
    const auto run = [&](const std::string& name) {
        return to_json_text(
            compose({.config_name = name, .config_path = user.path(), .search_dirs = {dir_.path()}}, files_),
            "root");
    };
    EXPECT_EQ(run("same"), R"({"seed":3})");
    EXPECT_EQ(run("mine"), R"({"seed":1})");
    EXPECT_EQ(run("base"), R"({"seed":1})");
}

TEST_F(Compose, NamesThatAreNotThere) {
    dir_.write("L0_sanity.yaml", "seed: 1\n");
    EXPECT_EQ(refused("L0_santy"), "--config-name L0_santy: no L0_santy.yaml in " + dir_.path().string() +
                                       "; did you mean L0_sanity?");
    EXPECT_THAT(error_of([&] { load({.config_name = "x"}); }), HasSubstr("give one with --config-path"));
    EXPECT_THAT(error_of([&] { load({.config_name = "x", .config_file = "y.yaml"}); }),
                HasSubstr("give one"));
    EXPECT_THAT(config_names({dir_.path(), dir_.path() / "nowhere"}), ElementsAre("L0_sanity"));
}

TEST_F(Compose, PlacesNameTheFileThatWon) {
    dir_.write("base.yaml", "seed: 1\ngrad_acc_steps: 2\n");
    dir_.write("top.yaml", "defaults: [base]\nseed: 2\n");
    const Loaded loaded =
        load({.config_name = "top", .search_dirs = {dir_.path()}, .overrides = required_keys()});
    EXPECT_EQ(loaded.place_of("seed"), (dir_.path() / "top.yaml").string() + ":2");
    EXPECT_EQ(loaded.place_of("grad_acc_steps"), (dir_.path() / "base.yaml").string() + ":2");
    EXPECT_EQ(loaded.name, "top");
}

}  // namespace
}  // namespace moebius::config::test
