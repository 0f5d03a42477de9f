import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { cliReference } from '#cli/reference.ts';
import { apiPage } from './docs/api.ts';
import { configurationPage } from './docs/configuration.ts';
import { errorPage, failuresIn } from './docs/errors.ts';
import { askController, askServer } from './docs/live.ts';
import { metricPage } from './docs/metrics.ts';
import { rightsTable } from './docs/rights.ts';
import { programSources } from './docs/sources.ts';

const repository = dirname(import.meta.dirname);
const folder = join(repository, 'docs', 'reference');
const mark = '<!-- Made by `npm run docs` from the sources. Do not edit. -->';

async function pages(): Promise<Readonly<Record<string, string>>> {
  const sources = await programSources();
  const answers = await askServer();
  return {
    'cli.md': cliReference(),
    'api.md': apiPage(answers.openApi),
    'errors.md': errorPage(failuresIn(sources)),
    'configuration.md': configurationPage(sources),
    'metrics.md': metricPage(answers.metrics, await askController()),
  };
}

/** Hand-written pages with a generated part between two markers. */
const parts: Readonly<Record<string, () => string>> = { 'SECURITY.md': rightsTable };
const [partBegins, partEnds] = ['<!-- Made by `npm run docs`. Do not edit. -->', '<!-- End of the generated part. -->'];

async function withPart(name: string, made: string): Promise<string> {
  const text = await readFile(join(repository, name), 'utf8');
  const [before, rest = ''] = text.split(`${partBegins}\n`);
  const [, after] = rest.split(partEnds);
  if (after === undefined) throw new Error(`${name} lacks the lines ${partBegins} and ${partEnds}`);
  return `${before}${partBegins}\n\n${made}\n\n${partEnds}${after}`;
}

const whole = (page: string): string => `${mark}\n\n${page.trimEnd()}\n`;

async function main(args: readonly string[]): Promise<number> {
  const check = args.includes('--check');
  if (args.some((arg) => arg !== '--check')) {
    console.error('usage: npm run docs [-- --check]');
    return 2;
  }
  await mkdir(folder, { recursive: true });
  const made = new Map(Object.entries(await pages()).map(([name, page]) => [`docs/reference/${name}`, whole(page)]));
  for (const [name, part] of Object.entries(parts)) made.set(name, await withPart(name, part()));
  const stale: string[] = [];
  for (const [name, text] of made) {
    const file = join(repository, name);
    const present = await readFile(file, 'utf8').catch(() => '');
    if (present === text) continue;
    stale.push(name);
    if (!check) await writeFile(file, text);
  }
  if (stale.length === 0) console.log('docs/reference and the made parts of other pages are up to date');
  else if (!check) console.log(`written: ${stale.join(', ')}`);
  else console.error(`out of date: ${stale.join(', ')}. Run: npm run docs`);
  return check && stale.length > 0 ? 1 : 0;
}

process.exitCode = await main(process.argv.slice(2));
