// moebius config: the resolved configuration, or the page that documents every key.
#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/cli/configuration.h"
#include "moebius/cli/terminal.h"
#include "moebius/config/print.h"
#include "moebius/models/model.h"
#include "moebius/train/resolve.h"

namespace moebius::cli {
namespace {

class ConfigCommand : public Command {
  public:
    std::string name() const override { return "config"; }
    std::string help() const override { return "Print the resolved configuration"; }
    void declare(Arguments& arguments) override {
        arguments_.declare(arguments);
        arguments.flag("--places", places_, "Say where each value came from");
        arguments.flag("--docs", docs_, "Print docs/configuration.md instead");
    }
    int run(const std::vector<std::string>&) override {
        install_signals();
        if (docs_) {
            print_raw(config::docs_page(train::registry_choices()));
            return 0;
        }
        config::LoadOptions options = arguments_.options();
        options.allow_missing = options.allow_not_yet = true;
        const config::Loaded loaded = config::load(options);
        print_raw(
            config::to_yaml(loaded.config, places_ ? loaded.places : std::map<std::string, std::string>{}));
        for (const std::string& line : config::not_honoured(loaded.config)) print_error("note: " + line);
        if (loaded.config.config_name_or_path.empty()) return 0;
        // What only the model can tell: unknown keys of config_kwargs, sizes that do not go together.
        try {
            check_model(loaded);
        } catch (const Error& error) {
            print_error(fmt::format("note: train refuses this: {}", error.what()));
        }
        return 0;
    }

  private:
    void check_model(const config::Loaded& loaded) const {
        const config::TrainConfig& c = loaded.config;
        const models::Model model(
            config::ModelConfig::load(c.config_name_or_path, arguments_.config_dirs(), c.config_kwargs),
            train::model_options(c, loaded.places));
        train::check_aux_loss(model, c);
    }

    ConfigurationArguments arguments_;
    bool places_ = false, docs_ = false;
};

}  // namespace

std::unique_ptr<Command> config_command() {
    return std::make_unique<ConfigCommand>();
}

}  // namespace moebius::cli
