import { Option } from 'commander';
import type { CreatedTokenJson, TokenJson } from '#front/rest/schemas.ts';
import { parseDurationArgument, pathSegment } from './arguments.ts';
import { collect, type StowageCommand } from './command.ts';
import type { MakeAction, Session } from './session.ts';
import { age, date, escapeControls } from './text.ts';

export function addTokenCommands(program: StowageCommand, act: MakeAction): void {
  const token = program
    .command('token')
    .description('Manage tokens for access to the API over the network.')
    .example('stowage token create ci --role user --expires 30d', 'a token for a program');
  token
    .command('create')
    .description('Create a token and print its secret. It is shown once; the server keeps only a hash.')
    .argument('<name>', 'name of the token')
    .addOption(
      new Option('--role <role>', 'permissions of the token')
        .choices(['viewer', 'user', 'admin'])
        .makeOptionMandatory(),
    )
    .option('--store <store>', 'only for this store (may be repeated; default: all)', collect)
    .option('--expires <duration>', 'how long it is valid, e.g. 30d (default: until revoked)')
    .example('stowage token create ci --role user --store data --expires 30d', 'one store, one month')
    .example(
      '(umask 077; stowage token create laptop --role admin > token)',
      'write the token to a file, for --token-file',
    )
    .action(act(create));
  token
    .command('list')
    .alias('ls')
    .description('List the tokens, without their secrets.')
    .example('stowage token list', 'roles and expiry of the tokens')
    .action(act(list));
  token
    .command('revoke')
    .description('Revoke a token. The server rejects it from now on.')
    .argument('<token>', 'its id')
    .example('stowage token revoke 5d0c…', 'the id is in: stowage token list')
    .action(
      act(async ({ client, out }, id: string) => {
        await client.change({ method: 'DELETE', path: `/v1/tokens/${pathSegment('token', id, 'token-reference')}` });
        out.reportDone(`revoked token ${id}`);
      }),
    );
}

interface TokenCreateFlags {
  readonly role: string;
  readonly store?: readonly string[];
  readonly expires?: string;
}

async function create({ client, out }: Session, name: string, options: TokenCreateFlags): Promise<void> {
  if (options.expires !== undefined) parseDurationArgument(options.expires);
  const body = {
    name,
    role: options.role,
    ...(options.store === undefined ? {} : { stores: options.store }),
    ...(options.expires === undefined
      ? {}
      : { expiresIn: /^[0-9]+$/.test(options.expires) ? `${options.expires}s` : options.expires }),
  };
  const token = (await client.change({ method: 'POST', path: '/v1/tokens', body })).body as CreatedTokenJson;
  if (out.json) return out.value(token);
  out.line(escapeControls(token.secret));
  out.note(`token ${token.id} (${token.name}, ${token.role}); the secret above is not shown again`);
}

async function list({ client, out, clock }: Session): Promise<void> {
  const tokens = await client.all<TokenJson>('/v1/tokens');
  if (out.json) return out.value(tokens);
  if (out.quiet) return tokens.forEach((token) => void out.line(escapeControls(token.id)));
  if (tokens.length === 0) return out.note('no tokens; create one with: stowage token create NAME --role user');
  out.table(
    ['ID', 'NAME', 'ROLE', 'STORES', 'AGE', 'EXPIRES'],
    tokens.map((token) => [
      token.id,
      token.name,
      token.role,
      token.stores.length === 0 ? 'all' : token.stores.join(','),
      age(token.createdAt, clock.now()),
      token.expiresAt === null ? 'never' : expiry(token.expiresAt, clock.now()),
    ]),
  );
}

const expiry = (at: string, now: number): { text: string; tone: 'plain' | 'bad' } =>
  Date.parse(at) <= now ? { text: 'expired', tone: 'bad' } : { text: date(at), tone: 'plain' };
