import { Command } from 'commander';

export interface Example {
  readonly line: string;
  readonly what: string;
}

/** A class because commander makes subcommands through a method to override; it adds only the examples. */
export class Verb extends Command {
  readonly examples: Example[] = [];

  constructor(name?: string) {
    super(name);
    this.addHelpText('after', () =>
      this.examples.length === 0
        ? ''
        : `\nExamples:\n${this.examples.map(({ line, what }) => `  # ${what}\n  ${line}`).join('\n')}`,
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

/** For options that may be given more than once. */
export const collect = (value: string, before: readonly string[] | undefined): string[] => [...(before ?? []), value];
