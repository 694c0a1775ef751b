#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"
#include "moebius/config/tree.h"

namespace moebius::config::test {
namespace {

using testing::HasSubstr;

std::string applied(const std::vector<std::string>& overrides) {
    Tree root{.kind = Tree::Kind::Map};
    for (const std::string& text : overrides) apply_override(root, text);
    return to_json_text(root, "root");
}

std::string refused(const std::string& text) {
    return error_of([&] { applied({text}); });
}

TEST(Override, ScalarsAreTypedByTheirLooks) {
    EXPECT_EQ(applied({"a=1"}), R"({"a":1})");
    EXPECT_EQ(applied({"a=-1.5e3"}), R"({"a":-1500.0})");
    EXPECT_EQ(applied({"a=true"}), R"({"a":true})");
    EXPECT_EQ(applied({"a=null"}), R"({"a":null})");
    EXPECT_EQ(applied({"a=yes"}), R"({"a":"yes"})");
    EXPECT_EQ(applied({"a='1'"}), R"({"a":"1"})");
    EXPECT_EQ(applied({"a=\"null\""}), R"({"a":"null"})");
    EXPECT_EQ(applied({"a="}), R"({"a":""})");
}

TEST(Override, RawTextRunsToTheEnd) {
    EXPECT_EQ(applied({"a=/x/y z,w.fa"}), R"({"a":"/x/y z,w.fa"})");
    EXPECT_EQ(applied({"a= x:y=z "}), R"({"a":"x:y=z"})");
    EXPECT_EQ(applied({"a=it's"}), R"({"a":"it's"})");
}

TEST(Override, QuotesKeepWhatTheyHold) {
    EXPECT_EQ(applied({R"(a="x, [y] \"z\" \\ '")"}), R"({"a":"x, [y] \"z\" \\ '"})");
    EXPECT_EQ(applied({R"(a='it\'s')"}), R"({"a":"it's"})");
    EXPECT_EQ(applied({R"(a="C:\dir")"}), R"({"a":"C:\\dir"})");  // other backslashes are themselves
}

TEST(Override, ListsAndMaps) {
    EXPECT_EQ(applied({"a=[0.9,0.95]"}), R"({"a":[0.9,0.95]})");
    EXPECT_EQ(applied({"a=[ 0.9 , x y, 'p,q', [1] ]"}), R"({"a":[0.9,"x y","p,q",[1]]})");
    EXPECT_EQ(applied({"a=[]"}), R"({"a":[]})");
    EXPECT_EQ(applied({"a={b:1,c: {d: null}}"}), R"({"a":{"b":1,"c":{"d":null}}})");
    EXPECT_EQ(applied({"a={}"}), R"({"a":{}})");
    EXPECT_EQ(applied({"a={'b c': [1,2]}"}), R"({"a":{"b c":[1,2]}})");
}

TEST(Override, DottedKeysNestAndMapsJoin) {
    EXPECT_EQ(applied({"a.b.c=1", "a.b.d=2", "a={e: 3}"}), R"({"a":{"b":{"c":1,"d":2},"e":3}})");
    EXPECT_EQ(applied({"a=1", "a.b=2"}), R"({"a":{"b":2}})");
    EXPECT_EQ(applied({"a=[1,2]", "a=[3]"}), R"({"a":[3]})");  // lists are replaced, not joined
}

TEST(Override, KeysOfManyPartsAreNone) {
    std::string key = "a";
    for (int i = 0; i < 31; ++i) key += ".a";
    EXPECT_NE(applied({key + "=1"}), "");
    EXPECT_THAT(refused(key + ".a=1"), HasSubstr("a key of 33 parts"));
    EXPECT_THAT(refused("~" + key + ".a"), HasSubstr("a key of 33 parts"));
}

TEST(Override, LaterWins) {
    EXPECT_EQ(applied({"a=1", "a=2"}), R"({"a":2})");
}

TEST(Override, PlusAddsAndTildeTakesAway) {
    EXPECT_EQ(applied({"+a.b=1", "++a.c=2"}), R"({"a":{"b":1,"c":2}})");
    EXPECT_EQ(applied({"a.b=1", "a.c=2", "~a.b"}), R"({"a":{"c":2}})");
    EXPECT_THAT(refused("~a.b"), HasSubstr("override ~a.b: nothing sets a.b"));
    EXPECT_THAT(refused("~a=1"), HasSubstr("override ~a=1: ~key takes the key away and has no value"));
}

TEST(Override, TildeGivesTheDefaultBack) {
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset: {path: x, stride: 5}\n"));
    EXPECT_EQ(load_file(file).config.dataset.stride, 5);
    EXPECT_EQ(load_file(file, {"~dataset.stride"}).config.dataset.stride, 200);
}

TEST(Override, MistakesAreNamed) {
    EXPECT_EQ(refused("seed"),
              "override seed: the '=' is missing; write key.sub=value, without spaces around =");
    EXPECT_EQ(refused("data/x.fa"), "override data/x.fa: the '=' is missing; write dataset.path=data/x.fa");
    EXPECT_THAT(refused("=3"), HasSubstr("'' is not a key"));
    EXPECT_THAT(refused("a..b=3"), HasSubstr("'a..b' is not a key"));
    EXPECT_THAT(refused("a b=3"), HasSubstr("'a b' is not a key"));
    EXPECT_THAT(refused("a=[1,2"), HasSubstr("override a=[1,2: the closing ] is missing"));
    EXPECT_THAT(refused("a=[1,,2]"), HasSubstr("a value is missing"));
    EXPECT_THAT(refused("a=[1 [2]]"), HasSubstr("override a=[1 [2]]"));
    EXPECT_THAT(refused("a={b 1}"), HasSubstr("expected 'key: value' in the map"));
    EXPECT_THAT(refused("a={b: 1, b: 2}"), HasSubstr("key b appears twice"));
    EXPECT_THAT(refused("a='x"), HasSubstr("the closing ' is missing"));
    EXPECT_THAT(refused("a='x' y"), HasSubstr("unexpected 'y' after the value"));
    EXPECT_THAT(refused("a=[1] b"), HasSubstr("quote the value"));
    EXPECT_THAT(refused("a=" + std::string(100, '[')), HasSubstr("nested too deep"));
}

}  // namespace
}  // namespace moebius::config::test
