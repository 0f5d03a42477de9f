import { Command } from 'commander';

export interface Example {
  readonly line: string;
  readonly what: string;
}

/** A class because commander makes subcommands through a method to override; it adds only the examples. */
export class StowageCommand extends Command {
  readonly examples: Example[] = [];
  /** The command exists only to fail with an explanation. */
  isUnsupported = false;
  /** Rewrites the program's name in examples and messages. */
  rewriteProgramName: (text: string) => string = (text) => text;

  constructor(name?: string) {
    super(name);
    this.addHelpText('after', () =>
      this.examples.length === 0
        ? ''
        : `\nExamples:\n${this.examples.map(({ line, what }) => `  # ${topOf(this).rewriteProgramName(what)}\n  ${topOf(this).rewriteProgramName(line)}`).join('\n')}`,
    );
  }

  override createCommand(name?: string): StowageCommand {
    return new StowageCommand(name);
  }

  example(line: string, what: string): this {
    this.examples.push({ line, what });
    return this;
  }
}

function topOf(command: StowageCommand): StowageCommand {
  return command.parent === null ? command : topOf(command.parent as StowageCommand);
}

/** For options that can be repeated. */
export const collect = (value: string, before: readonly string[] | undefined): string[] => [...(before ?? []), value];
