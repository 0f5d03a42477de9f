import { Command } from 'commander';

export interface Example {
  readonly line: string;
  readonly what: string;
}

/** A class because commander makes subcommands through a method to override; it adds only the examples. */
export class Verb extends Command {
  readonly examples: Example[] = [];
  /** It is understood, and said no to. */
  isRefused = false;
  /** What the program is called, in what is said of it. */
  spoken: (text: string) => string = (text) => text;

  constructor(name?: string) {
    super(name);
    this.addHelpText('after', () =>
      this.examples.length === 0
        ? ''
        : `\nExamples:\n${this.examples.map(({ line, what }) => `  # ${topOf(this).spoken(what)}\n  ${topOf(this).spoken(line)}`).join('\n')}`,
    );
  }

  override createCommand(name?: string): Verb {
    return new Verb(name);
  }

  example(line: string, what: string): this {
    this.examples.push({ line, what });
    return this;
  }
}

function topOf(command: Verb): Verb {
  return command.parent === null ? command : topOf(command.parent as Verb);
}

/** For options that may be given more than once. */
export const collect = (value: string, before: readonly string[] | undefined): string[] => [...(before ?? []), value];
